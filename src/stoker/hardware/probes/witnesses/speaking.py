"""Witnesses of what else can be spoken here: vulkaninfo, clinfo, sycl-ls and glxinfo.

They name no devices of ours, only backends: webgpu (through Vulkan), opencl, oneapi, opengl. What is emulated on the
processor does not count. Reading is pure and never raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from stoker.hardware.probes.asking import Reply, Silent
from stoker.hardware.probes.noticing import garbage, silence
from stoker.hardware.probes.sighting import Statement
from stoker.model.devices import Backend
from stoker.model.frozen import frozen

_VULKAN_TYPE = re.compile(r"deviceType\s*=\s*(?:PHYSICAL_DEVICE_TYPE_)?(\w+)")
_VULKAN_VERSION = re.compile(r"apiVersion\s*=.*?(\d+\.\d+\.\d+)")
_OPENCL_TYPE = re.compile(r"CL_DEVICE_TYPE\s+(.*)")
_OPENCL_VERSION = re.compile(r"CL_DEVICE_VERSION\s+OpenCL (\d+\.\d+)")
_SYCL_LINE = re.compile(r"\s*\[(?:ext_oneapi_)?(level_zero|opencl)(?::gpu[:\]]|\]?\[?[^\]]*:gpu)", re.MULTILINE)
_SYCL_VERSION = re.compile(r"\[(\d+\.\d+(?:\.\d+)*)(?:\+\d+)?\]\s*$", re.MULTILINE)
_GL_RENDERER = re.compile(r"OpenGL renderer string:\s*(.+)")
_GL_VERSION = re.compile(r"OpenGL (?:core profile )?version string:\s*(\d+\.\d+)")
_EMULATED = ("llvmpipe", "softpipe", "swrast", "software rasterizer", "swiftshader")


@frozen
class Speaker:
    """One program that knows whether a backend can be spoken."""

    witness: str
    backend: Backend
    argv: tuple[str, ...]
    version: Callable[[str], str | None]
    """Gives the version out of what it printed; `None`: there is no hardware behind it."""
    needs: tuple[str, ...] = ()
    """Variables, one of which must be set for it to have anybody to ask."""


def read(speaker: Speaker, reply: Reply) -> Statement:
    """Give what a program said about its backend."""
    if isinstance(reply, Silent):
        return Statement(witness=speaker.witness, findings=(silence(reply, speaker.witness),), was_heard=False)
    version = speaker.version(reply.out)
    if version is None and reply.exit_code and not reply.out.strip():
        finding = garbage(speaker.witness, f"it ended with {reply.exit_code}", reply.err)
        return Statement(witness=speaker.witness, findings=(finding,), was_heard=False)
    return Statement(witness=speaker.witness, backends={} if version is None else {speaker.backend: version})


def _vulkan(out: str) -> str | None:
    kinds, versions = _VULKAN_TYPE.findall(out), _VULKAN_VERSION.findall(out)
    if not any(kind in ("DISCRETE_GPU", "INTEGRATED_GPU", "VIRTUAL_GPU") for kind in kinds):
        return None
    return f"Vulkan {versions[0]}" if versions else ""


def _opencl(out: str) -> str | None:
    kinds, versions = _OPENCL_TYPE.findall(out), _OPENCL_VERSION.findall(out)
    if not any(word in ("CL_DEVICE_TYPE_GPU", "GPU") for kind in kinds for word in re.split(r"[\s|,]+", kind)):
        return None
    return max(versions, default="")


def _oneapi(out: str) -> str | None:
    if not _SYCL_LINE.search(out):
        return None
    versions = [found[1] for line in out.splitlines() if ":gpu" in line and (found := _SYCL_VERSION.search(line))]
    return versions[-1] if versions else ""


def _opengl(out: str) -> str | None:
    renderer = _GL_RENDERER.search(out)
    if renderer is None or any(word in renderer[1].lower() for word in _EMULATED):
        return None
    version = _GL_VERSION.search(out)
    return version[1] if version else ""


SPEAKERS = (
    Speaker(witness="vulkaninfo", backend=Backend.WEBGPU, argv=("vulkaninfo", "--summary"), version=_vulkan),
    Speaker(witness="clinfo", backend=Backend.OPENCL, argv=("clinfo", "--raw"), version=_opencl),
    Speaker(witness="sycl-ls", backend=Backend.ONEAPI, argv=("sycl-ls",), version=_oneapi),
    Speaker(
        witness="glxinfo",
        backend=Backend.OPENGL,
        argv=("glxinfo", "-B"),
        version=_opengl,
        needs=("DISPLAY", "WAYLAND_DISPLAY"),
    ),
)
