import pytest

from stoker.core.text import SYNONYMS, did_you_mean, did_you_mean_path, nearest

NAMES = ["depth", "learning_rate", "Seed", "test_percent"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("dept", "depth"),
        ("detph", "depth"),
        ("learning-rate", "learning_rate"),
        ("LEARNING_RATE", "learning_rate"),
        ("seed", "Seed"),
        ("test_percnt", "test_percent"),
        ("depth", "depth"),
    ],
)
def test_a_misspelt_name_finds_the_one_that_was_meant(written, meant):
    assert nearest(written, NAMES) == meant
    assert did_you_mean(written, NAMES) == f"did you mean {meant!r}?"


@pytest.mark.parametrize("written", ["", "x", "momentum"])
def test_a_name_like_no_other_gets_no_suggestion(written):
    assert nearest(written, NAMES) is None
    assert did_you_mean(written, NAMES) == ""


def test_the_best_of_several_similar_names_wins():
    assert nearest("max_dept", ["min_depth", "max_depth", "max_leaf"]) == "max_depth"


def test_names_may_come_from_anything_that_yields_them_once():
    assert nearest("dept", iter(NAMES)) == "depth"
    assert nearest("dept", []) is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("depth", "model.depth"),
        ("dept", "model.depth"),
        ("model.dept", "model.depth"),
        ("mdl.depth", "model.depth"),
        ("shape.lr", "lr"),
        ("momentum", None),
    ],
)
def test_of_a_dotted_name_the_last_part_is_enough(written, meant):
    assert did_you_mean_path(written, ["lr", "model.depth", "model.trees"]) == (
        f"did you mean {meant!r}?" if meant else ""
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("learning_rate", "lr"),
        ("learning-rate", "lr"),
        ("optim.Learning_Rate", "lr"),
        ("batch_size", "batch"),
        ("bs", "batch"),
        ("n_epochs", "epochs"),
        ("num_train_epochs", "epochs"),
        ("wd", "weight_decay"),
        ("weight-decay", "weight_decay"),
        ("random_state", "seed"),
        ("n_estimators", "model.trees"),
        ("max_depth", "model.depth"),
        ("momentum", None),
        ("num_workers", None),
    ],
)
def test_another_programs_word_for_a_setting_finds_it(written, meant):
    known = ["lr", "batch", "epochs", "weight_decay", "seed", "model.depth", "model.trees", "n_jobs", "threads"]
    assert did_you_mean_path(written, known) == (f"did you mean {meant!r}?" if meant else "")


def test_a_declared_alias_wins_over_words_of_other_programs():
    known, aliases = ["lr", "mlp.rate"], {"mlp.rate": ("learning_rate", "speed")}
    assert did_you_mean_path("learning_rate", known, aliases) == "did you mean 'mlp.rate'?"
    assert did_you_mean_path("speed", known, aliases) == "did you mean 'mlp.rate'?"
    assert did_you_mean_path("learning_rate", known) == "did you mean 'lr'?"


def test_a_word_stands_for_one_setting():
    words = [word for line in SYNONYMS for word in line.split()]
    assert len(words) == len(set(words))
