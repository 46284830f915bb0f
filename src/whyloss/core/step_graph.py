"""One recorded training step as plain data: which call made what of what, and where gradients can flow.

A tensor has a number; calls that change it in place give it a new state. All questions are answered on states, so that
what a call was given is what the tensor held at that moment.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import prod
from typing import Any

from whyloss.core.finding import Place
from whyloss.core.statistics import Statistics

BACKWARD = "torch.autograd.backward"

State = tuple[int, int]  # place of the call that wrote it, -1 for a leaf; number of the tensor
Shape = tuple[int, ...]


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOSSES = names("""
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss gaussian_nll_loss
    hinge_embedding_loss huber_loss kl_div l1_loss linear_cross_entropy margin_ranking_loss mse_loss multi_margin_loss
    multilabel_margin_loss multilabel_soft_margin_loss nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss
    triplet_margin_loss triplet_margin_with_distance_loss
""")
BROADCASTING_LOSSES = names("mse_loss l1_loss smooth_l1_loss huber_loss kl_div poisson_nll_loss")
VIEWS = names("""
    T H mT mH adjoint as_strided chunk diagonal expand expand_as flatten getitem imag movedim moveaxis narrow permute
    ravel real reshape reshape_as select split squeeze swapaxes swapdims t tensor_split transpose unbind unflatten
    unfold unsqueeze view view_as view_as_complex view_as_real
""")
CASTS = names("bfloat16 contiguous clone cpu cuda double float half int long to type type_as")
RESHAPES = (VIEWS | CASTS | {"BackwardHookFunction"}) - names("as_strided expand expand_as unfold")
DETACHES = names("asarray data detach")
COPIES = names("new_tensor tensor")
FLAT = names("bernoulli ceil fix floor floor_divide heaviside normal poisson round sgn sign trunc")
INDEXING = names("cummax cummin kthvalue max median min mode nanmedian sort topk")  # they return indices, too
WITHOUT_DERIVATIVE = names("bincount histc nextafter")
NORMS = names("batch_norm group_norm instance_norm layer_norm local_response_norm normalize rms_norm")
LIKE = names("""
    empty_like full_like ones_like rand_like randint_like randn_like zeros_like
    new_empty new_full new_ones new_tensor new_zeros
""")
AFTER_ANOTHER = names("expand_as reshape_as to type_as view_as")  # of which they take the shape or type only
ELEMENTWISE = names("""
    add and atan2 div divide eq fmax fmin floor_divide fmod ge greater gt hypot le less lt max maximum min minimum mod
    mul multiply ne or pow radd rdiv remainder rmul rpow rsub rtruediv sub subtract true_divide truediv xlogy xor
""")
DROPOUTS = names("alpha_dropout dropout dropout1d dropout2d dropout3d feature_alpha_dropout feature_dropout")
INITIALISERS = names("""
    constant dirac eye kaiming_normal kaiming_uniform normal ones orthogonal sparse trunc_normal uniform xavier_normal
    xavier_uniform zeros
""")
WEIGHT_SECOND = names("""
    linear convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
""")
BIAS_FIRST = names("addbmm addmm addmv baddbmm")
PRODUCTS = names("bmm einsum matmul mm mv rmatmul tensordot")
GRAD = "torch.autograd.grad"
EXITS = frozenset(
    f"torch.Tensor.{name}"
    for name in names("item tolist numpy __array__ __bool__ __float__ __int__ __index__ __complex__ __dlpack__")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What is known of a tensor. `requires_grad`: when it was first seen."""

    shape: Shape
    dtype: str  # float32, int64
    requires_grad: bool = False
    statistics: Statistics | None = None

    @property
    def floating(self) -> bool:
        """Whether it can have a gradient: real or complex floating point."""
        return self.dtype.startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One call. `tensors` and `arguments` go by the names of its parameters; what has no name, by its place: "0", "1".

    A tensor that stands in a list or an index has the name of its place there: `tensors[1]`, `key[0]`.
    """

    name: str  # torch.softmax, torch.Tensor.detach; user.module.MyFunction for a custom autograd.Function
    tensors: Mapping[str, int] = field(default_factory=dict)  # name → number
    outputs: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()  # tensors that the call changes in place
    arguments: Mapping[str, Any] = field(default_factory=dict)  # all that is no tensor, as JSON can hold it
    grad: bool = True  # grad mode
    autocast: bool = False
    module: str = ""  # path of the innermost module that was running; "" outside any, or in the root itself
    place: Place = Place()

    @property
    def kind(self) -> str:
        """`softmax` for torch.softmax, torch.Tensor.softmax_ and torch.nn.functional.softmax alike, `getitem` for
        __getitem__; the whole name of what is not torch's."""
        if not self.name.startswith("torch."):
            return self.name
        return self.name.removesuffix(".__set__").rpartition(".")[2].strip("_")

    @property
    def inputs(self) -> tuple[int, ...]:
        """Numbers of the tensors it is given, in order."""
        return tuple(self.tensors.values())

    @property
    def reads(self) -> tuple[int, ...]:
        """Those of them whose elements the result depends on: of x, zeros_like(x) takes the shape alone."""
        if self.kind in LIKE:
            return self.inputs[1:]
        return self.inputs[:1] if self.kind in AFTER_ANOTHER else self.inputs

    @property
    def reduction(self) -> str | None:
        """mean, sum, none, batchmean; None where the call has no such argument."""
        if self.arguments.get("reduce") is False:
            return "none"
        if self.arguments.get("size_average") is False:
            return "sum"
        found = self.arguments.get("reduction")
        return found if isinstance(found, str) else None

    @property
    def _target(self) -> int | None:
        """The tensor that it changes in place with autograd's knowledge: not the running statistics of a batch norm."""
        if "out" in self.tensors:
            return self.tensors["out"]
        last = self.name.rpartition(".")[2]
        in_place = last == "__setitem__" or (last.endswith("_") and not last.endswith("__"))
        if not in_place and self.arguments.get("inplace") is not True:
            return None
        first = next(iter(self.inputs), None)
        return first if first in self.changed else None

    @property
    def _rewritten(self) -> tuple[int, ...]:
        return self.inputs[:1] if self.name.endswith(".data.__set__") else self.changed

    @property
    def _flat(self) -> bool:
        return self.kind in FLAT or self.arguments.get("rounding_mode") is not None

    @property
    def _differentiable(self) -> bool:
        return self.grad and self.kind not in DETACHES | COPIES and not self._flat


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A tensor that no call of the step made. `carried`: it came with a graph from before the step."""

    value: int  # its number
    role: str  # parameter, buffer, input, target, constant
    name: str = ""  # of parameters, buffers and arguments; "" for others, and for parameters that the model lacks
    carried: bool = False


class CutKind(StrEnum):
    """How the path of a gradient ended."""

    DETACH = "detach"  # detach, .data, autograd.grad without create_graph
    COPY = "copy"  # a new tensor made from the values: torch.tensor(x)
    EXIT = "exit"  # the values left torch: .item(), .numpy(), float(x)
    NO_GRAD = "no_grad"  # the call ran without grad mode
    DISCRETE = "discrete"  # its derivative is 0 everywhere or there is none: argmax, round, x > 0, a cast to integers


@dataclass(frozen=True, slots=True)
class Cut:
    """A call in which the path of a gradient ended. `leads`: what it makes goes on into the loss.

    What left torch leads nowhere that can be seen, though the numbers may have come back.
    """

    op: Op
    kind: CutKind
    leads: bool


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Two operands of different shapes. `both`: both are enlarged, [N] and [N, 1] to [N, N]."""

    op: Op
    left: Shape
    right: Shape
    result: Shape
    both: bool


@dataclass(frozen=True, slots=True)
class AffinePair:
    """Two affine calls, the second fed by the first. `between`: the calls that lie there, first to last, but for those
    that only change the shape, and dropout."""

    first: Op
    second: Op
    between: tuple[Op, ...]


@dataclass(frozen=True, kw_only=True)
class StepGraph:
    """One training step of one optimizer.

    `ops`: the calls of which the losses are made, in order, backward calls included. `aside`: those whose results left
    torch, and what only they need. ValueError where a call names a tensor that `values` lacks.
    """

    ops: tuple[Op, ...] = ()
    values: Mapping[int, Value] = field(default_factory=dict)
    leaves: tuple[Leaf, ...] = ()  # in the order of their first use
    losses: tuple[int, ...] = ()  # numbers of what the backward calls start from
    aside: tuple[Op, ...] = ()
    step: int = 0  # of its optimizer
    trace: int = 0  # the optimizer's number in the run
    training: bool = True  # of the root module
    faithful: bool = False  # replayed unchanged it gave loss and gradients bit for bit
    reason: str = ""  # why it is not faithful

    def __post_init__(self) -> None:
        named = {leaf.value for leaf in self.leaves} | set(self.losses)
        for op in (*self.ops, *self.aside):
            named.update(op.inputs, op.outputs, op.changed)
        missing = named - self.values.keys()
        if missing:
            msg = f"tensor {min(missing)} is named but not described"
            raise ValueError(msg)

    # -- the loss

    @cached_property
    def loss_ops(self) -> tuple[Op, ...]:
        """The loss functions of torch nearest to what backward was given. Empty where the loss is written by hand."""
        return tuple(op for op in self.tail if op.kind in LOSSES)

    @cached_property
    def tail(self) -> tuple[Op, ...]:
        """The calls that make the losses of the predictions: back from the losses to a loss function of torch, that
        included, or to what is computed with a weight, that not included."""
        flow = self.flow
        calls = {k for k, op in enumerate(self.ops) if op.kind in LOSSES or not self._is_weighted(k)}
        edges = {s: before for s, before in flow.data.items() if s[0] in calls and flow.calls[s[0]].kind not in LOSSES}
        reached = {k for k, _ in _closure(flow.roots, edges)}
        return tuple(self.ops[k] for k in sorted(reached & calls))

    def _is_weighted(self, k: int) -> bool:
        """Whether it computes with a weight, otherwise than element by element."""
        return self.ops[k].kind not in ELEMENTWISE and any(self.flow.is_weight(s) for s in self.flow.reads[k])

    @cached_property
    def ends(self) -> tuple[Op, ...]:
        """The calls that made what backward was given. Without those losses that are leaves."""
        return tuple(self.ops[k] for k in dict.fromkeys(k for k, _ in self.flow.roots) if k >= 0)

    def prediction(self, op: Op) -> int:
        """The number of what a loss function is given as the prediction: where only its target has a gradient, the two
        were given the other way round."""
        return self._sides(op)[0]

    def target(self, op: Op) -> int | None:
        """The number of what it is given as the target. None where it takes none."""
        return self._sides(op)[1]

    def feeding(self, op: Op) -> Op | Leaf:
        """What made the prediction of a loss function, looking through calls that only reshape, cast or pick."""
        return self.origin(op, self.prediction(op))

    def target_of(self, op: Op) -> Op | Leaf | None:
        """What made its target, seen in the same way. None where it takes none."""
        number = self.target(op)
        return None if number is None else self.origin(op, number)

    def producers(self, op: Op) -> tuple[Op | Leaf, ...]:
        """What made each of the tensors that the call is given, in their order; changes in place count."""
        given = self.flow.given[self.flow.place(op)]
        return tuple(self._source(given[n]) for n in op.inputs)

    def origin(self, op: Op, number: int, through: frozenset[str] = frozenset()) -> Op | Leaf:
        """What made a tensor that the call is given, seen in the same way, and through calls of further kinds."""
        state = self.flow.given[self.flow.place(op)][number]
        while (before := self._through(state, through)) is not None:
            state = before
        return self._source(state)

    def users(self, op: Op) -> tuple[Op, ...]:
        """The calls on the way to a loss that read what this one made or changed."""
        written = set(self.flow.written[self.flow.place(op)])
        return tuple(u for u, reads in zip(self.ops, self.flow.reads, strict=False) if not written.isdisjoint(reads))

    def differentiable(self, op: Op, number: int) -> bool:
        """Whether a tensor required grad when the call was given it."""
        return self.flow.live(self.flow.given[self.flow.place(op)][number])

    def _sides(self, op: Op) -> tuple[int, int | None]:
        named = op.tensors
        first = op.inputs[0]
        second = next((named[name] for name in ("target", "targets") if name in named), None)
        if second is None and "1" in named:
            second = named["1"]
        given = self.flow.given[self.flow.place(op)]
        if second is not None and self.flow.live(given[second]) and not self.flow.live(given[first]):
            return second, first
        return first, second

    def _source(self, state: State) -> Op | Leaf:
        k, number = state
        if k >= 0:
            return self.flow.calls[k]
        return self.flow.leaves.get(number) or Leaf(value=number, role="constant")

    def _through(self, state: State, more: frozenset[str] = frozenset()) -> State | None:
        """The state behind a call that only changes shape or type, or picks; None where another made this one."""
        k, number = state
        op = self.flow.calls[k] if k >= 0 else None
        if op is None or op.kind not in RESHAPES | more or not op.inputs:
            return None
        rounded = self.values[op.inputs[0]].floating and not self.values[number].floating
        return None if rounded else self.flow.given[k][op.inputs[0]]

    # -- gradients

    @cached_property
    def reaching(self) -> tuple[Leaf, ...]:
        """The leaves, whatever their role, from which a gradient path leads to a loss. One through `round` is none.

        With `backward(inputs=…)` a leaf may have a path and get no gradient.
        """
        return tuple(leaf for leaf in self.leaves if (-1, leaf.value) in self.flow.differentiated)

    @cached_property
    def used(self) -> tuple[Leaf, ...]:
        """The leaves that a call reads, whatever becomes of it."""
        reads = zip(self.flow.calls, self.flow.reads, strict=True)
        read = {number for op, states in reads if op.name != BACKWARD for _, number in states}
        return tuple(leaf for leaf in self.leaves if leaf.value in read)

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """All calls in which a gradient path ended, those aside included, in order. Many are as they should be: masks,
        targets, metrics."""
        return tuple(self._cut(k) for k in self.flow.ended)

    def cut_of(self, parameter: Leaf | str) -> tuple[Cut, ...]:
        """Where the gradient paths of a leaf ended: the cuts that lead to the loss; where none does, those aside.

        Empty where a path is left, and where there was none: it is frozen, or not in the step.
        """
        starts = {(-1, leaf.value) for leaf in self.leaves if parameter in (leaf, leaf.name)}
        if not starts or starts & self.flow.differentiated:
            return ()
        reached = self.flow.downstream(starts)
        found = [self._cut(k) for k, states in self.flow.ended.items() if states & reached]
        return tuple(cut for cut in found if cut.leads) or tuple(found)

    def _cut(self, k: int) -> Cut:
        flow, op = self.flow, self.flow.calls[k]
        dead = [s for s in flow.written[k] if not any(e in flow.gradient[s] for e in flow.ended[k]) or not flow.live(s)]
        return Cut(op, self._kind_of_cut(op), any(s in flow.ancestors for s in dead))

    def _kind_of_cut(self, op: Op) -> CutKind:
        if op.kind in DETACHES or op.name == GRAD:
            return CutKind.DETACH
        if op.kind in COPIES:
            return CutKind.COPY
        if op.name in EXITS:
            return CutKind.EXIT
        made = [self.values[n] for n in op.outputs]
        discrete = op._flat or (bool(made) and not any(value.floating for value in made))
        return CutKind.DISCRETE if discrete or op.grad else CutKind.NO_GRAD

    # -- structure

    @cached_property
    def between_affine(self) -> tuple[AffinePair, ...]:
        """Pairs of affine calls where the second is fed by the first alone.

        Where two results of calls meet on the way, as in a residual sum or a gate, the way ends: that is no pair.
        """
        affine = {k: state for k, op in enumerate(self.ops) if (state := self._affine_input(k)) is not None}
        pairs = (self._pair(k, state, affine) for k, state in affine.items())
        return tuple(pair for pair in pairs if pair is not None)

    @cached_property
    def entries(self) -> tuple[tuple[Op, Leaf], ...]:
        """Affine calls that are given data as it came into the step, with the leaf; looking through calls that only
        reshape, cast or pick."""
        found = []
        for k, op in enumerate(self.ops):
            state = self._affine_input(k)
            while state is not None and (before := self._through(state)) is not None:
                state = before
            source = self._source(state) if state is not None else None
            if isinstance(source, Leaf) and source.role not in ("parameter", "buffer"):
                found.append((op, source))
        return tuple(found)

    @cached_property
    def affine(self) -> tuple[Op, ...]:
        """The calls that multiply what they are given with a weight."""
        return tuple(op for k, op in enumerate(self.ops) if self._affine_input(k) is not None)

    def hidden(self, op: Op) -> bool:
        """Whether what the call makes goes into an affine call, in whatever way."""
        return not self._before_affine.isdisjoint(self.flow.written[self.flow.place(op)])

    @cached_property
    def _before_affine(self) -> frozenset[State]:
        given = (self._affine_input(k) for k in range(len(self.ops)))
        return _closure([s for s in given if s is not None], self.flow.data)

    def _affine_input(self, k: int) -> State | None:
        """What an affine call multiplies with a weight; None where the call is none, or multiplies no weight."""
        op, given = self.ops[k], self.flow.given[k]
        operands = op.inputs[1:3] if op.kind in BIAS_FIRST else op.inputs[:2]
        if op.kind not in WEIGHT_SECOND | BIAS_FIRST | PRODUCTS or len(operands) < 2:
            return None
        states = [given[n] for n in operands]
        data = [s for s in states if not self.flow.is_weight(s)]
        if not data:  # an input that is to have a gradient looks like a weight, too
            data = [s for s in states if not self.flow.is_state_of_model(s)]
        return data[0] if len(data) == 1 else None

    def _pair(self, second: int, state: State, affine: Mapping[int, State]) -> AffinePair | None:
        between: list[Op] = []
        while state[0] >= 0 and state[0] not in affine:
            k = state[0]
            before = [s for s in self.flow.reads[k] if s[0] >= 0 and not self.flow.is_state_of_model(s)]
            if len(before) != 1:
                return None
            op = self.ops[k]
            if op.kind not in RESHAPES | DROPOUTS:
                between.insert(0, op)
            state = before[0]
        return AffinePair(self.ops[state[0]], self.ops[second], tuple(between)) if state[0] >= 0 else None

    @cached_property
    def broadcasts(self) -> tuple[Broadcast, ...]:
        """Elementwise calls on two tensors where both are enlarged, and loss functions whose two operands differ in
        shape at all. Without those that stretch one side only, as for a bias, a scale or a mask."""
        found = (self._broadcast(op) for op in self.ops)
        return tuple(b for b in found if b is not None and (b.both or b.op.kind in LOSSES))

    def _broadcast(self, op: Op) -> Broadcast | None:
        if op.kind not in ELEMENTWISE | BROADCASTING_LOSSES or len(op.inputs) < 2:
            return None
        left, right = (self.values[n].shape for n in op.inputs[:2])
        result = broadcast_shape(left, right)
        if left == right or result is None:
            return None
        return Broadcast(op, left, right, result, prod(result) > max(prod(left), prod(right)))

    @cached_property
    def flow(self) -> "Flow":
        return Flow(self)


class Flow:
    """Which state was made of which: by value (`data`), and with a gradient that can flow back (`gradient`)."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self.calls = (*graph.ops, *graph.aside)
        self.leaves = {leaf.value: leaf for leaf in graph.leaves}
        self.given: list[Mapping[int, State]] = []
        self.reads: list[tuple[State, ...]] = []
        self.written: list[tuple[State, ...]] = []
        self.data: dict[State, tuple[State, ...]] = {}
        self.gradient: dict[State, tuple[State, ...]] = {}
        self.roots: list[State] = []
        self._behind: dict[State, frozenset[State]] = {}
        self._live: dict[State, bool] = {}
        self._last: dict[int, int] = {}
        self._memory: dict[int, list[int]] = {}  # number → all that share its memory
        self._tracked: dict[int, list[int]] = {}  # the same as far as autograd knows of it
        self._places = {id(op): k for k, op in enumerate(self.calls)}
        for k, op in enumerate(graph.ops):
            self._add(k, op)
        self.roots = self.roots or [self._now(n) for n in graph.losses]
        for k, op in enumerate(graph.aside, len(graph.ops)):
            self._add(k, op)

    def place(self, op: Op) -> int:
        """KeyError for a call of another graph."""
        return self._places[id(op)]

    def live(self, state: State) -> bool:
        """Whether it requires grad."""
        if state in self._live:
            return self._live[state]
        return state[0] < 0 and self.graph.values[state[1]].requires_grad

    def _now(self, number: int) -> State:
        return self._last.get(number, -1), number

    def _add(self, k: int, op: Op) -> None:
        given = {n: self._now(n) for n in op.inputs}
        self.given.append(given)
        self.reads.append(tuple(given[n] for n in dict.fromkeys(op.reads)))
        if op.name == BACKWARD:
            self.roots += [given[n] for n in given if n in self.graph.losses]
            self.written.append(())
            return
        sources = {n: self._sources(k, op, n) for n in self._touched(op)}
        for n, (live, gradient) in sources.items():
            before = () if n in op.outputs and n not in given else (self._now(n),)
            self._live[k, n] = live
            self.gradient[k, n] = gradient if live else ()
            self.data[k, n] = (*self.reads[k], *before)
        self._last.update(dict.fromkeys(sources, k))
        self.written.append(tuple((k, n) for n in sources))
        self._relate(op)

    def _touched(self, op: Op) -> tuple[int, ...]:
        """All numbers whose state the call makes or changes, what shares their memory included."""
        numbers = list(op.outputs)
        for n in op._rewritten:
            numbers += self._memory.get(n, [n])
        if op.kind == "requires_grad":
            numbers += op.inputs[:1]
        return tuple(dict.fromkeys(numbers))

    def _sources(self, k: int, op: Op, number: int) -> tuple[bool, tuple[State, ...]]:
        """Whether the state that the call gives a tensor requires grad, and the states to which a gradient flows."""
        passing = tuple(s for s in self.reads[k] if self.live(s)) if op._differentiable else ()
        if number in op.outputs and number not in op.inputs:
            return self._made(op, number, passing)
        own = self._now(number)
        if op.name.endswith(".detach_"):
            return False, ()
        if op.kind == "requires_grad":
            return op.arguments.get("requires_grad", True) is not False, (own,) if self.live(own) else ()
        if not op.grad or number not in self._kin(op._target):
            return self.live(own), (own,)
        if number != op._target and self.live(own):
            passing = (*passing, own)
        return bool(passing), passing

    def _made(self, op: Op, number: int, passing: tuple[State, ...]) -> tuple[bool, tuple[State, ...]]:
        """The same for a tensor that the call returns anew."""
        value = self.graph.values[number]
        if op._target is not None and not op.grad:
            own = self._now(op._target)
            return self.live(own), (own,)
        if value.requires_grad or op._flat:
            return value.requires_grad and not op._flat, passing
        # inside a re-entrant checkpoint results do not require grad yet, though a gradient will flow through them
        later = (
            value.floating and op.name.startswith("torch.") and op.name != GRAD and op.kind not in WITHOUT_DERIVATIVE
        )
        return later and bool(passing), passing

    def _kin(self, target: int | None) -> list[int]:
        """What autograd takes to be changed with it."""
        return [] if target is None else self._tracked.get(target, [target])

    def _relate(self, op: Op) -> None:
        """Notes which results share memory with what the call was given."""
        source = op._target if op._target is not None else next(iter(op.inputs), None)
        picks = op.kind == "getitem" and len(op.inputs) > 1  # by a tensor of indices: that makes a copy
        shares = op._target is not None or (op.kind in VIEWS | DETACHES and not picks)
        if source is None or not shares:
            return
        relations = (self._memory,) if op.kind in DETACHES else (self._memory, self._tracked)
        for relation in relations:
            kin = relation.setdefault(source, [source])
            for n in op.outputs:
                if n not in kin:
                    kin.append(n)
                    relation[n] = kin

    # -- what follows from it

    @cached_property
    def ancestors(self) -> frozenset[State]:
        """All that a loss depends on."""
        return _closure(self.roots, self.data)

    def behind(self, state: State) -> frozenset[State]:
        """All that it depends on, itself included."""
        if state not in self._behind:
            self._behind[state] = _closure([state], self.data)
        return self._behind[state]

    @cached_property
    def differentiated(self) -> frozenset[State]:
        """All to which a gradient flows from a loss."""
        return _closure([s for s in self.roots if self.live(s)], self.gradient)

    @cached_property
    def ended(self) -> Mapping[int, frozenset[State]]:
        """Place of a call → the states that it read whose gradient path ended in it. Only calls that have some."""
        read = {s for states in self.reads for s in states}
        found = {k: frozenset(self._ended(k, read)) for k in range(len(self.calls))}
        return {k: states for k, states in found.items() if states}

    def _ended(self, k: int, read: set[State]) -> Iterable[State]:
        if self.calls[k].name == BACKWARD:
            return ()
        live = [s for s in self.reads[k] if self.live(s)]
        op = self.calls[k]
        indices = [n for n in op.outputs if not self.graph.values[n].floating]
        if op.kind in INDEXING and any((k, n) in read for n in indices):
            return live
        flowing = {s for w in self.written[k] for s in self.gradient[w]}
        return [s for s in live if s not in flowing]

    def downstream(self, starts: Iterable[State]) -> set[State]:
        """These states and all from which a gradient flows to them."""
        reached = set(starts)
        for states in self.written:
            reached.update(s for s in states if not reached.isdisjoint(self.gradient[s]))
        return reached

    def is_weight(self, state: State) -> bool:
        """Made of parameters, with buffers or without, or of other leaves that are trained; and of nothing else."""
        roles = self._roles_of(state)
        return (self.is_state_of_model(state) and "parameter" in roles) or roles == {"trained"}

    def is_state_of_model(self, state: State) -> bool:
        """Made of parameters and buffers, and of nothing else."""
        return self._roles_of(state) <= {"parameter", "buffer"}

    def _roles_of(self, state: State) -> frozenset[str]:
        return self._roles.get(state) or self._role(state)

    @cached_property
    def _roles(self) -> Mapping[State, frozenset[str]]:
        """The roles of the leaves behind each state; `made` where a call made it of no tensor, `trained` for a constant
        that requires grad."""
        roles: dict[State, frozenset[str]] = {}
        for states in self.written:
            for state in states:
                own = self._role(state)
                behind = [roles.get(s) or self._role(s) for s in self.data[state]]
                made = frozenset().union(*behind) if behind else own
                roles[state] = own if own <= {"parameter", "buffer"} else made  # whatever it was changed to
        return roles

    def _role(self, state: State) -> frozenset[str]:
        leaf = self.leaves.get(state[1])
        if leaf is None:
            return frozenset(("made",))
        trained = leaf.role == "constant" and self.graph.values[leaf.value].requires_grad and not leaf.carried
        return frozenset(("trained" if trained else leaf.role,))


def _closure(starts: Iterable[State], edges: Mapping[State, tuple[State, ...]]) -> frozenset[State]:
    found: set[State] = set()
    open_ = list(starts)
    while open_:
        state = open_.pop()
        if state not in found:
            found.add(state)
            open_ += edges.get(state, ())
    return frozenset(found)


def broadcast_shape(left: Shape, right: Shape) -> Shape | None:
    """None where the two don't broadcast."""
    pairs = list(_aligned(left, right))
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        return None
    return tuple(b if a == 1 else a for a, b in pairs)


def _aligned(left: Shape, right: Shape) -> Iterator[tuple[int, int]]:
    axes = max(len(left), len(right))
    return zip((1,) * (axes - len(left)) + left, (1,) * (axes - len(right)) + right, strict=True)
