"""The manifest: system A's shape, the keys of ours, what they mean together, and every fault with its place."""

from __future__ import annotations

import pytest

from stoker.config.manifest_file import JOB, HostEntry, JobEntry, overlaid, read_manifest
from stoker.config.manifest_rules import KnownNames
from stoker.core.device import COMPUTE_BACKENDS, GIB, Backend
from stoker.core.errors import InvalidManifest, LocalFile
from stoker.core.leases import Partition
from stoker.core.machine import Cluster, DevicePreference, Node
from tests.unit.config.declaring import Drawer

SYSTEM_A = """
[[hosts]]
name = "desktop"
description = "RTX 4090"
priority = 10
allow_jobs = ["gbt", "mlp"]

[[hosts]]
name = "jetson"
deny_jobs = ["transformer"]

[[jobs]]
name = "gbt_realistic"
model = "gbt"
mode = "realistic"

[[jobs]]
name = "transformer_oracle"
model = "transformer"
mode = "oracle"
priority = 5
require_cuda = true
min_vram_gib = 8.0
min_ram_gib = 16.0
allowed_hosts = ["desktop"]
hyper = { lr = 3e-4, layers = [2, 2], nested = { dropout = 0.1 } }
split_recipe = "by_day"
train_hosts = ["desktop", "jetson"]
seed = 42
"""

EXPERIENCE = """
[[jobs]]
name    = "resnet"
command = "python train.py --lr {lr} --seed {seed}"
sweep   = { lr = [1e-3, 3e-4, 1e-4], seed = [0, 1] }
require_cuda = true
min_vram_gib = 6
data    = { DATA = "~/data/imagenet100" }
outputs = ["runs/"]
env     = "uv.lock"
after   = ["prep"]
secrets = ["WANDB_API_KEY"]

[[hosts]]
name = "lab1"
deny_jobs = ["lora"]
"""


def test_system_as_file_loads_as_it_is(drawer: Drawer) -> None:
    manifest = drawer.manifest(SYSTEM_A)
    plain, oracle = manifest.jobs
    assert plain == JobEntry(name="gbt_realistic", model="gbt", mode="realistic")
    assert plain.min_ram_gib == 4.0
    assert (oracle.priority, oracle.require_cuda, oracle.seed, oracle.split_recipe) == (5, True, 42, "by_day")
    assert oracle.hyper == {"lr": 3e-4, "layers": [2, 2], "nested": {"dropout": 0.1}}
    assert oracle.train_hosts == ("desktop", "jetson")
    assert manifest.hosts == (
        HostEntry(
            name="desktop",
            description="RTX 4090",
            priority=10,
            allow_jobs=("gbt", "mlp"),
            given=frozenset({"description", "priority", "allow_jobs"}),
        ),
        HostEntry(name="jetson", deny_jobs=("transformer",), given=frozenset({"deny_jobs"})),
    )
    assert manifest.find("gbt_realistic") is plain
    assert manifest.find("nobody") is None


def test_three_lines_are_a_whole_file(drawer: Drawer) -> None:
    (job,) = drawer.manifest('[[jobs]]\nname = "mine"\ncommand = "python train.py"\n').jobs
    assert job == JobEntry(name="mine", command=("python", "train.py"))


def test_every_key_that_the_guide_shows_is_read(drawer: Drawer) -> None:
    (job,) = drawer.manifest(EXPERIENCE, known=KnownNames(jobs={"prep"})).jobs
    assert job.command == ("python", "train.py", "--lr", "{lr}", "--seed", "{seed}")
    assert job.sweep == {"lr": [1e-3, 3e-4, 1e-4], "seed": [0, 1]}
    assert (job.data, job.outputs, job.env) == ({"DATA": "~/data/imagenet100"}, ("runs/",), {"": "uv.lock"})
    assert job.spec_fields().items() >= {"after": ("prep",), "secrets": ("WANDB_API_KEY",)}.items()


def test_yaml_has_the_same_keys(drawer: Drawer) -> None:
    text = "jobs:\n- {name: a, command: [python, 'train it.py'], gpus: 2}\nhosts:\n- {name: lab1, priority: 3}\n"
    manifest = drawer.manifest(text, "m.yaml")
    assert manifest.jobs == (JobEntry(name="a", command=("python", "train it.py"), gpus=2),)
    assert manifest.hosts == (HostEntry(name="lab1", priority=3, given=frozenset({"priority"})),)


def test_a_manifest_may_be_policy_alone(drawer: Drawer) -> None:
    assert drawer.manifest('[[hosts]]\nname = "lab1"\n').jobs == ()


@pytest.mark.parametrize("text", ["", "jobs = []", "jobs = []\nhosts = []"])
def test_a_manifest_says_something(drawer: Drawer, text: str) -> None:
    (fault,) = drawer.manifest_faults(text)
    assert "at least one job" in fault


@pytest.mark.parametrize(
    ("lines", "wish", "count"),
    [
        ("", DevicePreference.NEVER, 1),
        ("require_cuda = true", DevicePreference.REQUIRE, 1),
        ("prefer_cuda = true", DevicePreference.PREFER, 1),
        ("require_cuda = true\nprefer_cuda = true", DevicePreference.REQUIRE, 1),
        ("min_vram_gib = 6", DevicePreference.PREFER, 1),
        ("require_cuda = false\nmin_vram_gib = 6", DevicePreference.PREFER, 1),
        ("gpus = 2", DevicePreference.REQUIRE, 2),
        ("gpus = 2\nprefer_cuda = true", DevicePreference.PREFER, 2),
        ("gpus = 0", DevicePreference.NEVER, 1),
        ("min_vram_gib = 0", DevicePreference.NEVER, 1),
        ('gpu_backend = "cuda"', DevicePreference.REQUIRE, 1),
        ('gpu_backend = "rocm"\nmin_vram_gib = 6', DevicePreference.PREFER, 1),
        ('gpu_backend = "rocm"\ngpus = 2\nprefer_cuda = true', DevicePreference.PREFER, 2),
    ],
)
def test_what_a_job_declares_about_devices_is_its_wish(
    drawer: Drawer, lines: str, wish: DevicePreference, count: int
) -> None:
    (job,) = drawer.manifest(f'[[jobs]]\nname = "j"\nmodel = "m"\n{lines}\n').jobs
    wanted = job.wanted()
    assert (wanted.requirements.wish, wanted.requirements.device_count) == (wish, count)


@pytest.mark.parametrize("backend", COMPUTE_BACKENDS)
def test_a_job_names_the_backend_of_its_devices(drawer: Drawer, backend: Backend) -> None:
    text = '[[jobs]]\nname = "j"\nmodel = "m"\ngpus = 1\n{}\n'
    (job,) = drawer.manifest(text.format(f'gpu_backend = "{backend}"')).jobs
    assert job.wanted().requirements.backend is backend
    (default,) = drawer.manifest(text.format("")).jobs
    assert default.wanted().requirements.backend is Backend.CUDA


def test_placement_sees_bytes(drawer: Drawer) -> None:
    (job,) = drawer.manifest(
        '[[jobs]]\nname = "j"\nrecipe = "language/lora"\nmin_vram_gib = 6.5\nmin_ram_gib = 8\nmin_cores = 4\n'
        'shares = true\nbase = "qwen"\nbase_gib = 1.25\npriority = -3\nallowed_hosts = ["a", "b"]\n'
        'prefer_hosts = ["b"]\ntransfer_mb = 1.5\nmflop = 2e6\n'
    ).jobs
    wanted = job.wanted()
    needs = wanted.requirements
    assert (wanted.name, wanted.model, wanted.priority) == ("j", "language/lora", -3)
    assert (wanted.allowed_hosts, wanted.preferred_hosts) == (("a", "b"), ("b",))
    assert (needs.vram_bytes, needs.ram_bytes, needs.cores) == (13 * GIB // 2, 8 * GIB, 4)
    assert (needs.may_share, needs.base, needs.base_bytes) == (True, "qwen", 5 * GIB // 4)
    assert (needs.transfer_mb, needs.mflop) == (1.5, 2e6)


def test_a_program_is_of_the_recipe_command(drawer: Drawer) -> None:
    (job,) = drawer.manifest('[[jobs]]\nname = "j"\ncommand = "x"\n').jobs
    assert job.wanted().model == "command"


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("", "1:3: jobs[0]: job j has neither recipe, model nor command"),
        ('model = "m"\ncommand = "x"', "4:1: jobs[0].command: job j has model and command"),
        ('recipe = "r"\nmodel = "m"', "4:1: jobs[0].model: job j has recipe and model"),
        ('command = "python \'x"', "3:11: jobs[0].command: \"python 'x\" can't be split: no closing quotation"),
        ('command = ""', "3:11: jobs[0].command: is empty"),
        ("command = []", "3:11: jobs[0].command: is empty"),
        ('command = "  "', "3:11: jobs[0].command: is empty"),
        ('command = ["", "x"]', "3:11: jobs[0].command: is empty"),
        ("command = 3", "3:11: jobs[0].command: 3 is not text"),
        (
            'model = "m"\nmin_vram_gib = "6GiB"',
            "4:16: jobs[0].min_vram_gib: '6GiB' is not a number (it counts GiB: write 6)",
        ),
        (
            'model = "m"\nmin_vram_gib = "6"',
            "4:16: jobs[0].min_vram_gib: '6' is not a number (write it without quotes)",
        ),
        ('model = "m"\nmin_ram_gib = -1', "4:15: jobs[0].min_ram_gib: -1 is less than 0"),
        ('model = "m"\nmin_ram_gib = nan', "4:15: jobs[0].min_ram_gib: nan is not finite"),
        ('model = "m"\nmin_ram_gib = inf', "4:15: jobs[0].min_ram_gib: inf is not finite"),
        ('model = "m"\nmin_ram_gib = 1e300', "4:15: jobs[0].min_ram_gib: 1e+300 is more than"),
        ('model = "m"\nmin_ram_gib = true', "4:15: jobs[0].min_ram_gib: true is not a number"),
        ('model = "m"\nmin_cores = 1.5', "4:13: jobs[0].min_cores: 1.5 is not a whole number"),
        ('model = "m"\nrequire_cuda = 1', "4:16: jobs[0].require_cuda: 1 is neither true nor false (write true)"),
        (
            'model = "m"\nrequires_cuda = true',
            "4:1: jobs[0].requires_cuda: a job has no key 'requires_cuda' (did you mean 'require_cuda'?)",
        ),
        (
            'model = "m"\nargs = { lr = 1 }',
            "4:1: jobs[0].args: a job has no key 'args' (did you mean 'hyper'? hyper: the recipe's arguments; lists",
        ),
        ('model = "m"\nmemory = "8G"', "4:1: jobs[0].memory: a job has no key 'memory' (did you mean 'min_ram_gib'?"),
        (
            'model = "m"\nseed = 0xffffffffffffffffffffffffffffffffffffffff',
            "4:8: jobs[0].seed: a whole number of 160 bits is more than",
        ),
        (
            'model = "m"\ngpus = 0\nrequire_cuda = true',
            "4:8: jobs[0].gpus: job j has gpus = 0 and require_cuda",
        ),
        (
            'model = "m"\ngpus = 0\ngpu_backend = "rocm"',
            "4:8: jobs[0].gpus: job j has gpus = 0 and gpu_backend",
        ),
        (
            'model = "m"\ngpu_backend = "ROCM"',
            "4:15: jobs[0].gpu_backend: 'ROCM' is not cuda or rocm or metal or oneapi (did you mean 'rocm'?)",
        ),
        (
            "command = 'x'\nmetrics = ['(.*)(.*)(.*)(.*)y']",
            (
                "4:12: jobs[0].metrics[0]: '(.*)(.*)(.*)(.*)y' is not a pattern with a group for the number, a path, "
                "or off (several of its repetitions match the same text, so one line may take seconds)"
            ),
        ),
        ('model = "m"\nshares = true', "4:10: jobs[0].shares: job j shares its device without a limit"),
        ('model = "m"\nbase = "b"', "4:8: jobs[0].base: job j has base without base_gib"),
        ('model = "m"\nbase_gib = 2', "4:12: jobs[0].base_gib: job j has base_gib without base"),
        (
            'model = "m"\nbase = "b"\nbase_gib = 2\nmin_vram_gib = 1',
            "5:12: jobs[0].base_gib: job j: its base of 2 GiB is more than min_vram_gib, 1",
        ),
        ('model = "m"\nallowed_hosts = "lab"', "4:17: jobs[0].allowed_hosts: 'lab' is not a list (in a list: ['lab'])"),
        ('model = "m"\nallowed_hosts = ["a b"]', "4:18: jobs[0].allowed_hosts[0]: 'a b' is not a machine's name"),
        (
            'model = "m"\nallowed_hosts = ["a"]\nprefer_hosts = ["b"]',
            "5:17: jobs[0].prefer_hosts[0]: job j prefers b, which allowed_hosts leaves out",
        ),
        ('model = "m"\nhyper = [1]', "4:9: jobs[0].hyper: a list is not a map of names and values"),
        ('model = "m"\nsweep = { lr = [] }', "4:16: jobs[0].sweep.lr: lr has no values"),
        ('model = "m"\nsweep = { zip = { a = [1], b = [1, 2] } }', "4:17: jobs[0].sweep.zip: zip of unequal lengths"),
        (
            'model = "m"\nhyper = { lr = 1 }\nsweep = { lr = [1, 2] }',
            "4:11: jobs[0].hyper.lr: job j: lr is in hyper and in sweep",
        ),
        ('model = "m"\ndata = { "2x" = "y" }', "4:10: jobs[0].data.2x: '2x' is not a variable's name"),
        ('model = "m"\ndata = { X = 3 }', "4:14: jobs[0].data.X: 3 is not text"),
        (
            'model = "m"\noutputs = ["../up"]',
            "4:12: jobs[0].outputs[0]: '../up' is not a path below the working folder",
        ),
        ('model = "m"\noutputs = ["/abs"]', "4:12: jobs[0].outputs[0]: '/abs' is not a path below"),
        ('model = "m"\nsecrets = ["A B"]', "4:12: jobs[0].secrets[0]: 'A B' is not a variable's name"),
        ('model = "m"\nenv = "uv.lock"\npython = "/usr/bin/python3"', "5:1: jobs[0].python: job j has env and python"),
        ('model = "m"\nenv = { mars = "uv.lock" }', "4:9: jobs[0].env.mars: 'mars' is no platform"),
        ('model = "m"\nenv = { linux-aarch64 = 3 }', "4:25: jobs[0].env.linux-aarch64: 3 is not text"),
        ('model = "m"\nenv = {}', "4:7: jobs[0].env: names no platform"),
        ('model = "m"\npython = 3.11', "4:10: jobs[0].python: 3.11 is not text"),
        (
            'model = "m"\nafter = ["nobody"]',
            "4:10: jobs[0].after[0]: job j waits for 'nobody', and there is no such job",
        ),
        ('model = "m"\nafter = ["j"]', "4:10: jobs[0].after[0]: j waits for itself: j → j"),
        ('model = "m"\nsplit_recipe = 3', "4:16: jobs[0].split_recipe: 3 is not text or a map"),
        ('model = "m"\nwhen = 2024-01-31', "4:8: jobs[0].when: 2024-01-31 is a date or a time"),
        ('model = "m"\nsweep = { day = [2024-01-31] }', "4:18: jobs[0].sweep.day[0]: 2024-01-31 is a date or a time"),
        ('model = "m"\nsweep = { day = 07:32:00 }', "4:17: jobs[0].sweep.day: 07:32:00 is a date or a time"),
        ('model = "m"\nsweep = { a = [[1, 2024-01-31]] }', "4:20: jobs[0].sweep.a[0][1]: 2024-01-31 is a date or"),
    ],
)
def test_a_fault_is_told_where_it_stands(drawer: Drawer, lines: str, fault: str) -> None:
    if "when" in lines:
        faults = drawer.manifest_faults(f'[[jobs]]\nname = "j"\n{lines}\n')
        assert faults[0].startswith(f"m.toml:{fault}")
    else:
        assert drawer.job_fault(lines).startswith(fault)


@pytest.mark.parametrize("name", ["a b", "", ".", "..", "last", "-x", "a/b", "x" * 101])
def test_a_jobs_name_is_a_folders(drawer: Drawer, name: str) -> None:
    (fault,) = drawer.manifest_faults(f'[[jobs]]\nname = "{name}"\nmodel = "m"\n')
    assert fault.startswith("m.toml:2:8: jobs[0].name: ")


def test_names_that_stand_twice_are_told_with_both_lines(drawer: Drawer) -> None:
    job, host = '[[jobs]]\nname = "a"\nmodel = "m"\n', '[[hosts]]\nname = "h"\n'
    assert drawer.manifest_faults(job + host + host + job) == [
        "m.toml:9:8: jobs[1].name: duplicate job name 'a' (first on line 2)",
        "m.toml:7:8: hosts[1].name: duplicate host name 'h' (first on line 5)",
    ]


def test_jobs_that_wait_in_a_circle_are_told_with_the_circle(drawer: Drawer) -> None:
    text = "".join(
        f'[[jobs]]\nname = "{name}"\nmodel = "m"\nafter = [{after}]\n'
        for name, after in (("a", '"b"'), ("b", '"c"'), ("c", '"d", "a"'), ("d", ""), ("e", '"a"'))
    )
    (fault,) = drawer.manifest_faults(text)
    assert fault == "m.toml:12:15: jobs[2].after[1]: a waits for itself: a → b → c → a"


def test_a_circle_of_thousands_is_found_without_recursion(drawer: Drawer) -> None:
    count = 1200
    text = "".join(f'[[jobs]]\nname = "j{i}"\nmodel = "m"\nafter = ["j{(i + 1) % count}"]\n' for i in range(count))
    (fault,) = drawer.manifest_faults(text)
    assert "j0 waits for itself: j0 → j1 → j2 → j3 → j4 → j5 → j6 → … → j1199 → j0" in fault


def test_a_chain_is_no_circle_however_it_is_listed(drawer: Drawer) -> None:
    text = "".join(
        f'[[jobs]]\nname = "{name}"\nmodel = "m"\nafter = [{after}]\n'
        for name, after in (("a", '"b", "c"'), ("b", '"d"'), ("c", '"d"'), ("d", ""))
    )
    assert len(drawer.manifest(text).jobs) == 4


def test_unknown_models_and_modes_are_told_with_what_there_is(drawer: Drawer) -> None:
    known = KnownNames(recipes={"mlp", "gbt", "knn"}, modes={"realistic", "oracle"})
    faults = drawer.manifest_faults('[[jobs]]\nname = "j"\nmodel = "gtb"\nmode = "magic"\n', known=known)
    assert faults == [
        "m.toml:3:9: jobs[0].model: job j: there is no model 'gtb'; there are gbt, knn, mlp (did you mean 'gbt'?)",
        "m.toml:4:8: jobs[0].mode: job j: there is no mode 'magic'; there are oracle, realistic",
    ]
    assert drawer.manifest('[[jobs]]\nname = "j"\nmodel = "anything"\nmode = "at-all"\n').jobs


def test_a_recipe_may_be_called_by_its_last_word_if_that_is_only_one(drawer: Drawer) -> None:
    known = KnownNames(recipes={"tabular/gbt", "tabular/mlp", "toy/mlp", "command"})
    assert drawer.manifest('[[jobs]]\nname = "j"\nmodel = "gbt"\n', known=known).jobs
    (fault,) = drawer.manifest_faults('[[jobs]]\nname = "j"\nrecipe = "mlp"\n', known=known)
    assert "there is no recipe 'mlp'; there are command, tabular/gbt, tabular/mlp, toy/mlp" in fault


def test_unknown_machines_are_told_only_where_somebody_knows_them(drawer: Drawer) -> None:
    text = '[[jobs]]\nname = "j"\nmodel = "m"\nallowed_hosts = ["lab1", "lab3"]\n'
    (fault,) = drawer.manifest_faults(text, known=KnownNames(hosts={"lab1", "lab2"}))
    assert "allowed_hosts[1]: job j: there is no machine 'lab3'; there are lab1, lab2 (did you mean" in fault
    assert drawer.manifest(text).jobs


def test_faults_of_all_jobs_come_together(drawer: Drawer) -> None:
    with pytest.raises(InvalidManifest) as caught:
        drawer.manifest('[[jobs]]\nnam = "a"\n[[jobs]]\nname = "b"\nmodel = 3\n[[hosts]]\n[extra]\nx = 1\n')
    assert [str(fault).split(" (")[0] for fault in caught.value.faults] == [
        "m.toml:2:1: jobs[0].nam: a job has no key 'nam'",
        "m.toml:1:3: jobs[0]: name is missing",
        "m.toml:5:9: jobs[1].model: 3 is not text",
        "m.toml:6:3: hosts[0]: name is missing",
        "m.toml:7:2: extra: a manifest has no key 'extra'",
        "m.toml:1:3: jobs[0]: the job jobs[0] has neither recipe, model nor command",
    ]
    assert caught.value.exit_code == 24


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[jobs]]\nname = "a\n', "is not TOML"),
        ("jobs = 3", "jobs: 3 is not a list"),
        ("[jobs]\nname = 'a'", "jobs: a map is not a list"),
        ("jobs = [1, 'x']", "jobs[0]: 1 is not a job"),
        ("[[jobs]]\nseed = " + "9" * 5000, "digits"),
        (b"jobs = '\xff'", "UTF-8"),
        ("jobs = " + "[" * 60 + "]" * 60, "nested"),
    ],
)
def test_what_can_not_be_read_is_a_fault_with_a_line(drawer: Drawer, text: str | bytes, words: str) -> None:
    faults = drawer.manifest_faults(text)
    assert words in faults[0]
    assert faults[0].startswith("m.toml:")


def test_a_text_of_too_many_values_is_refused_before_it_is_read(drawer: Drawer) -> None:
    (fault,) = drawer.manifest_faults("jobs = [" + "1," * 500_001 + "]")
    assert "there are more than 500000 values" in fault


def test_commas_in_text_are_no_values(drawer: Drawer) -> None:
    many = "," * 600_000
    faults = drawer.manifest_faults(
        f"[[jobs]]\nname = 'a'\nmodel = 'm'\n# {many}\nhyper = {{ x = '{many}' }}\nextra = 1\n"
    )
    assert [fault.split(" (")[0] for fault in faults] == ["m.toml:6:1: jobs[0].extra: a job has no key 'extra'"]


def test_a_file_that_is_not_there_is_told_by_its_sort(drawer: Drawer) -> None:
    drawer.write("", "jobs.toml")
    with pytest.raises(LocalFile, match=r"there is no manifest job\.toml") as caught:
        read_manifest("job.toml", str(drawer.folder / "job.toml"))
    assert "jobs.toml" in caught.value.hint


def test_a_manifests_policy_takes_the_place_of_the_cluster_files(drawer: Drawer) -> None:
    cluster = Cluster(
        nodes=(
            Node(name="lab1", host="h", deny_jobs=("lora",), priority=2, description="left"),
            Node(name="lab2", host="h"),
        )
    )
    hosts = drawer.manifest('[[hosts]]\nname = "lab1"\npriority = 7\n[[hosts]]\nname = "laptop"\n').hosts
    first, second = overlaid(cluster, hosts).nodes
    assert (first.priority, first.deny_jobs, first.description) == (7, ("lora",), "left")
    assert second is cluster.nodes[1]
    assert overlaid(cluster, ()) is cluster


def test_a_job_says_how_often_how_long_and_what_when_cut_off(drawer: Drawer) -> None:
    text = (
        '[[jobs]]\nname = "a"\ncommand = "x"\nattempts = 3\ntimeout = "8h"\nexpected = "90m"\non_partition = "keep"\n'
    )
    (job,) = read_manifest("m.toml", drawer.write(text, "m.toml")).jobs
    assert job.spec_fields() == {
        "attempts": 3,
        "timeout_s": 28800.0,
        "expected_s": 5400.0,
        "on_partition": Partition.KEEP,
    }


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('timeout = "soon"', "'soon' is not a time such as 90s, 30m or 8h"),
        ('timeout = "90"', "'90' is not a time such as 90s, 30m or 8h"),
        ('timeout = "0s"', "'0s' is not a time such as 90s, 30m or 8h"),
        ("timeout = 90", "90 is not text"),
        (f'timeout = "{"9" * 400}h"', "is not a time such as 90s, 30m or 8h"),
        ('expected = "soon"', "'soon' is not a time such as 90s, 30m or 8h, at most 366d"),
        ('expected = "90"', "'90' is not a time such as 90s"),
        ('expected = "0s"', "m.toml:4:12: jobs[0].expected: '0s' is not a time such as 90s"),
        ('expected = "-2h"', "'-2h' is not a time such as 90s"),
        ('expected = "inf"', "'inf' is not a time such as 90s"),
        ('expected = "nan"', "'nan' is not a time such as 90s"),
        ('expected = "367d"', "'367d' is not a time such as 90s"),
        (f'expected = "{"9" * 400}h"', "is not a time such as 90s"),
        ("expected = 90", "90 is not text"),
        ("expected = inf", "inf is not text"),
        ('eta = "2h"', "a job has no key 'eta' (did you mean 'expected'?"),
        ("attempts = 0", "0 is less than 1"),
        ('on_partition = "kep"', "'kep' is not stop or keep (did you mean 'keep'?)"),
        ("priority = 1000001", "1000001 is more than 1000000"),
    ],
    ids=str,
)
def test_how_often_and_how_long_are_checked(drawer: Drawer, line: str, fault: str) -> None:
    with pytest.raises(InvalidManifest) as raised:
        read_manifest("m.toml", drawer.write(f'[[jobs]]\nname = "a"\ncommand = "x"\n{line}\n', "m.toml"))
    assert fault in str(raised.value.faults[0])


def test_thousands_of_plain_jobs_are_read_and_the_one_that_is_wrong_is_found(drawer: Drawer) -> None:
    text = "".join(f'[[jobs]]\nname = "j{at}"\ncommand = "x"\nhyper = {{ lr = 0.{at + 1} }}\n' for at in range(2_000))
    assert len(read_manifest("m.toml", drawer.write(text, "m.toml")).jobs) == 2_000
    with pytest.raises(InvalidManifest, match=r"m.toml:8001:1: jobs\[1999\].lr: a job has no key 'lr'"):
        read_manifest("m.toml", drawer.write(f"{text}lr = 1\n", "m.toml"))


def test_an_environment_may_be_another_on_machines_of_another_sort(drawer: Drawer) -> None:
    (job,) = drawer.manifest(
        '[[jobs]]\nname = "a"\ncommand = "python train.py"\n'
        'env = { linux-aarch64 = "requirements-jetson.txt", default = "uv.lock[cuda]" }\n'
        'python = { linux-aarch64-cp310 = "/usr/bin/python3", default = ">=3.11,<3.13" }\n'
    ).jobs
    assert job.env == {"linux-aarch64": "requirements-jetson.txt", "": "uv.lock[cuda]"}
    assert job.python == {"linux-aarch64-cp310": "/usr/bin/python3", "": ">=3.11,<3.13"}


def test_every_word_that_stands_for_a_key_of_a_job_names_one_and_is_none_itself():
    keys = {field.name for field in JOB.fields}
    assert set(JOB.meant.values()) <= keys
    assert not keys.intersection(JOB.meant)
