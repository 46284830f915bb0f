"""What of a machine and of torch's settings decides the last bits of a step."""

import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import torch

Precision = Literal["highest", "high", "medium"]


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    torch: str
    python: str
    whyloss: str
    processor: str
    devices: tuple[str, ...] = ()  # names of the accelerators
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    deterministic: bool = False  # torch.use_deterministic_algorithms
    warn_only: bool = False
    precision: Precision = "highest"  # of float32 matrix products
    cudnn: tuple[bool, bool, bool] = (True, False, False)  # enabled, benchmark, deterministic
    mkldnn: bool = True

    def differences(self, other: "Environment") -> tuple[str, ...]:
        """Why the last bits may not be those of the other; nothing of what `settings` restores."""
        pairs = (
            ("torch", self.torch, other.torch),
            ("processor", self.processor, other.processor),
            ("device", ", ".join(self.devices) or "cpu", ", ".join(other.devices) or "cpu"),
            ("threads", str(self.threads), str(other.threads)),
        )
        return tuple(f"{what} {mine}, not {theirs}" for what, mine, theirs in pairs if mine != theirs)


def environment(devices: Iterable[torch.device]) -> Environment:
    """Of this process, for a step on these devices."""
    used = sorted({str(d) for d in devices if d.type == "cuda"})
    cudnn = torch.backends.cudnn
    return Environment(
        torch=str(torch.__version__),
        python=platform.python_version(),
        whyloss=_version(),
        processor=_processor(),
        devices=tuple(torch.cuda.get_device_name(d) for d in used),
        threads=torch.get_num_threads(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
        precision=torch.get_float32_matmul_precision(),  # type: ignore[arg-type]
        cudnn=(cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        mkldnn=torch._C._get_mkldnn_enabled(),
    )


@contextmanager
def settings(of: Environment) -> Iterator[None]:
    """Torch's settings as they were there, for the time of a replay."""
    before = environment(())
    _change(before, of)
    try:
        yield
    finally:
        _change(of, before)


def _change(now: Environment, then: Environment) -> None:
    if now.threads != then.threads:
        torch.set_num_threads(then.threads)
    if (now.deterministic, now.warn_only) != (then.deterministic, then.warn_only):
        torch.use_deterministic_algorithms(then.deterministic, warn_only=then.warn_only)
    if now.precision != then.precision:
        torch.set_float32_matmul_precision(then.precision)
    if now.cudnn != then.cudnn:
        cudnn = torch.backends.cudnn
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = then.cudnn
    if now.mkldnn != then.mkldnn:
        torch._C._set_mkldnn_enabled(then.mkldnn)


def _version() -> str:
    try:
        return version("whyloss")
    except PackageNotFoundError:  # not installed, only on the path
        return ""


@cache
def _processor() -> str:
    """Kernels are chosen by it."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{_model()}, {capability}"


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
