"""Finding the model behind an optimizer with no help from the script, and naming what it holds."""

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from whyloss.core.lines import is_user_file, user_frames, variable_names


@dataclass(frozen=True)
class Root:
    """An outermost module. `prefix` stands before its names; `in_model` is False for one kept in a plain container."""

    module: nn.Module
    prefix: str
    in_model: bool = True

    def path(self, name: str) -> str:
        return ".".join(part for part in (self.prefix, name) if part)


@dataclass(frozen=True)
class Owned:
    """A parameter with its names."""

    parameter: torch.Tensor
    name: str
    module: str
    kind: str
    in_model: bool
    user_code: bool
    aliases: tuple[str, ...] = ()  # its other names, where weights are tied


WRAPPERS = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module", "DataParallel": "module"}


def modules_alive() -> list[nn.Module]:
    """Every module in memory. One walk over the garbage collector's list: 0.1 s on a large program."""
    return [o for o in gc.get_objects() if issubclass(type(o), nn.Module)]


def find_roots(
    wanted: Iterable[torch.Tensor], given: Sequence[nn.Module] = (), modules: list[nn.Module] | None = None
) -> list[Root]:
    """The given modules, and the outermost ones that hold the wanted tensors which those don't: most covered first,
    fewest others where that is equal."""
    chosen = [_unwrapped(m) for m in given]
    missing = {id(t) for t in wanted} - {id(p) for m in chosen for p in m.parameters()}
    modules = (modules_alive() if modules is None else modules) if missing else []
    children = {id(c) for m in modules for c in m._modules.values()}
    outermost = [(m, {id(p) for p in m.parameters()}) for m in modules if id(m) not in children]
    while missing:
        best = max(outermost, key=lambda mp: (len(mp[1] & missing), -len(mp[1])), default=None)
        if best is None or not best[1] & missing:
            break
        chosen.append(_unwrapped(best[0]))
        missing -= best[1]
    return _named(chosen)


def compiled_wrappers(module: nn.Module) -> list[nn.Module]:
    """What torch.compile(module) has given, as far as it is alive."""
    holders = [o for o in modules_alive() if type(o).__name__ == "OptimizedModule"]
    return [o for o in holders if o._modules.get("_orig_mod") is module]


def _unwrapped(module: nn.Module) -> nn.Module:
    """The user's own module inside what torch.compile and data parallelism put around it."""
    while (inside := module._modules.get(WRAPPERS.get(type(module).__name__, ""))) is not None:
        module = inside
    return module


def _named(modules: list[nn.Module]) -> list[Root]:
    if len(modules) == 1:
        return [Root(modules[0], "")]
    kept = {id(m): name for owner in modules for m, name in _in_containers(owner)}
    proper = [m for m in modules if id(m) not in kept]
    variables = variable_names(user_frames(sys._getframe(1)), proper)
    roots = []
    for i, module in enumerate(modules):
        if id(module) in kept:
            roots.append(Root(module, kept[id(module)], in_model=False))
        elif len(proper) == 1:
            roots.append(Root(module, ""))
        else:
            roots.append(Root(module, variables.get(id(module), f"{type(module).__name__.lower()}{i}")))
    return roots


def _in_containers(owner: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Modules that the owner's modules keep in a list, tuple or dict, where parameters() doesn't look."""
    for path, module in owner.named_modules():
        for attribute, value in vars(module).items():
            if attribute == "_modules" or not isinstance(value, list | tuple | dict):
                continue
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                if issubclass(type(item), nn.Module):
                    yield item, ".".join(p for p in (path, f"{attribute}[{key!r}]") if p)


def owned_parameters(roots: Iterable[Root]) -> list[Owned]:
    """Each parameter once, under its first name, in the order of registration."""
    out: dict[int, Owned] = {}
    for root in roots:
        classes = dict(root.module.named_modules())
        for path, module in classes.items():
            for name, parameter in module._parameters.items():
                if parameter is None:
                    continue
                full = root.path(".".join(p for p in (path, name) if p))
                known = out.get(id(parameter))
                if known is not None:
                    out[id(parameter)] = replace(known, aliases=tuple(dict.fromkeys((*known.aliases, full))))
                    continue
                user = _written_by_user(path, classes)
                kind = type(module).__name__
                out[id(parameter)] = Owned(parameter, full, root.path(path), kind, root.in_model, user)
    return list(out.values())


def _written_by_user(path: str, classes: dict[str, nn.Module]) -> bool:
    """Whether the class that has this module as an attribute is the user's. torch's containers are looked through."""
    while path:
        path = path.rpartition(".")[0]
        parent = type(classes[path])
        if not parent.__module__.startswith("torch."):
            module = sys.modules.get(parent.__module__)
            file = getattr(module, "__file__", None)
            return file is None or is_user_file(file)
    return True


def siblings(path: str, root: nn.Module) -> tuple[str, ...]:
    """The same place in the other members of the ModuleList or ModuleDict that holds the module, if one does."""
    parts = path.split(".")
    for i in range(len(parts) - 1, -1, -1):
        parent = root.get_submodule(".".join(parts[:i]))
        if isinstance(parent, nn.ModuleList | nn.ModuleDict):
            others = [k for k in parent._modules if k != parts[i]]
            return tuple(".".join([*parts[:i], other, *parts[i + 1 :]]) for other in others)
    return ()
