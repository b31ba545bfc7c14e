"""FLOPs of the ops of a TensorFlow graph: of matrix products and convolutions, two for a
multiplication and an addition.

What touches every element a few times (norms, activations, pooling, softmax) counts for nothing, as
in the models that come with simreduce and in what papers publish. An op that is neither is named,
as nobody knows what it takes. Shapes must be known. It is the work of what TensorFlow runs: a
dilated convolution of an image that the dilation does not divide is one of a padded image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tensorflow as tf

Op = Any
"""A `tf.Operation`."""


@dataclass(frozen=True, slots=True)
class FlopCount:
    """`flops`, and by type and reason the ops whose FLOPs are not among them."""

    flops: int = 0
    uncounted: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: FlopCount) -> FlopCount:
        return FlopCount(self.flops + other.flops, self.uncounted + other.uncounted)


def work_of(op: Op) -> FlopCount:
    """Of one execution. A call is what it calls; a loop is as many times its body as it may run."""
    if op.type in _PRODUCTS:
        try:
            return FlopCount(_PRODUCTS[op.type](op))
        except (ValueError, IndexError):  # a dimension that is not known
            return FlopCount(uncounted=Counter([f"{op.type} of unknown shape"]))
    if op.type in _CALLS:
        return _body(op, "f")
    if op.type in {"While", "StatelessWhile"}:
        return _loop(op)
    if op.type in {"If", "StatelessIf"}:
        return max(_body(op, "then_branch"), _body(op, "else_branch"), key=lambda work: work.flops)
    return FlopCount() if op.type in _FREE else FlopCount(uncounted=Counter([op.type]))


def needed(outputs: Iterable[Any]) -> set[Op]:
    """The ops that must run for these tensors; what nobody reads TensorFlow leaves out."""
    found: set[Op] = set()
    waiting = [tensor.op for tensor in outputs]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs]
    return found


def _body(op: Op, attribute: str) -> FlopCount:
    graph = op.graph._get_function(op.get_attr(attribute).name).graph  # noqa: SLF001 - TensorFlow has no public way
    return sum((work_of(each) for each in needed(graph.outputs)), FlopCount())


def _loop(op: Op) -> FlopCount:
    """Loops of TensorFlow 2 begin with their counter and the most rounds, -1 for any number."""
    body = _body(op, "body")
    rounds = _constant(op.inputs[1]) if len(op.inputs) > 1 else None
    if rounds is None or rounds < 0:
        unknown = body.flops or body.uncounted
        return FlopCount(uncounted=Counter([f"{op.type} of unknown length"] if unknown else []))
    times = Counter({name: rounds * count for name, count in body.uncounted.items()})
    return FlopCount(rounds * body.flops, times)


def _constant(tensor: Any) -> int | None:
    """The number that a tensor always is; Keras gives loops their length as the maximum of one
    number.
    """
    if tensor.shape != ():
        return None
    if tensor.op.type in {"Cast", "Identity", "Max"}:
        return _constant(tensor.op.inputs[0])
    value = tf.get_static_value(tensor)
    return None if value is None else int(value)


def _dims(tensor: Any) -> list[int]:
    """ValueError if one is not known."""
    dims: list[int] = tensor.shape.as_list()
    if None in dims:
        raise ValueError(tensor.name)
    return dims


def _matmul(op: Op) -> int:
    first = _dims(op.inputs[0])
    attribute = "transpose_a" if op.type == "MatMul" else "adj_x"
    inner = first[-2] if op.get_attr(attribute) else first[-1]
    return 2 * prod(_dims(op.outputs[0])) * inner


def _convolution(
    filters: Callable[[Op], Any], result: Callable[[Op], Any], channels: int
) -> Callable[[Op], int]:
    """Every element of the convolution's result is a sum over the window and the channels that one
    filter reads: over all but the last `channels` dimensions of the filters.
    """
    return lambda op: 2 * prod(_dims(result(op))) * prod(_dims(filters(op))[:-channels])


def _einsum(op: Op) -> int:
    """Of two operands: a multiplication and an addition for every combination of subscripts."""
    if len(op.inputs) != 2:
        return 0
    equation = op.get_attr("equation").decode().replace(" ", "")
    sizes: dict[str, int] = {}
    for subscripts, tensor in zip(equation.partition("->")[0].split(","), op.inputs, strict=True):
        dims = _dims(tensor)
        before, dots, after = subscripts.partition("...")
        hidden = len(dims) - len(before) - len(after)
        names = [*before, *(f"...{hidden - i}" for i in range(hidden) if dots), *after]
        for name, size in zip(names, dims, strict=True):
            sizes[name] = max(size, sizes.get(name, 1))  # what is behind dots may be broadcast
    return 2 * prod(sizes.values())


def _family(name: str, suffix: str, channels: int) -> dict[str, Callable[[Op], int]]:
    """A convolution, and the two products that its gradients are; all three are the same
    multiplications.
    """
    return {
        name: _convolution(lambda op: op.inputs[1], lambda op: op.outputs[0], channels),
        f"{name}BackpropInput{suffix}": _convolution(
            lambda op: op.inputs[1], lambda op: op.inputs[2], channels
        ),
        f"{name}BackpropFilter{suffix}": _convolution(
            lambda op: op.outputs[0], lambda op: op.inputs[2], channels
        ),
    }


_PRODUCTS: Mapping[str, Callable[[Op], int]] = {
    "MatMul": _matmul,
    "BatchMatMul": _matmul,
    "BatchMatMulV2": _matmul,
    "BatchMatMulV3": _matmul,
    "Einsum": _einsum,
    **_family("Conv2D", "", 1),
    **_family("Conv3D", "V2", 1),
    **_family("DepthwiseConv2dNative", "", 2),
}

_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}

_FREE = frozenset(
    """
    Abs Acos Acosh Add AddN AddV2 All Any ArgMax ArgMin Asin Asinh AssignAddVariableOp
    AssignSubVariableOp AssignVariableOp Atan Atan2 Atanh AvgPool AvgPool3D AvgPool3DGrad
    AvgPoolGrad BatchToSpaceND BiasAdd BiasAddGrad Bitcast BroadcastArgs BroadcastGradientArgs
    BroadcastTo Bucketize Cast Ceil CheckNumerics ClipByValue Complex Concat ConcatOffset ConcatV2
    Const Conj ControlTrigger Cos Cosh Cross Cumprod Cumsum CumulativeLogsumexp DepthToSpace Diag
    DiagPart Digamma Div DivNoNan DynamicPartition DynamicStitch Elu EluGrad Empty EmptyTensorList
    EnsureShape Equal Erf Erfc Erfinv Exp ExpandDims Expm1 ExtractImagePatches FakeParam Fill
    Floor FloorDiv FloorMod FractionalAvgPool FractionalMaxPool FusedBatchNorm FusedBatchNormGrad
    FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3 Gather GatherNd
    GatherV2 Greater GreaterEqual Identity IdentityN Igamma Igammac Imag InTopKV2 InvGrad Inv
    InvertPermutation IsFinite IsInf IsNan L2Loss LRN LRNGrad LeakyRelu LeakyReluGrad LeftShift
    Less LessEqual Lgamma LinSpace Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr LoopCond
    LowerBound MatrixBandPart MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiagV3 Max MaxPool MaxPool3D
    MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradV2 MaxPoolV2
    MaxPoolWithArgmax MaxPoolGradWithArgmax Maximum Mean Min Minimum MirrorPad MirrorPadGrad Mod
    Mul MulNoNan Multinomial Neg NextAfter NoOp NotEqual OneHot OnesLike OptionalFromValue
    OptionalGetValue OptionalNone Pack Pad PadV2 ParallelConcat Placeholder PlaceholderWithDefault
    Polygamma Pow PreventGradient Prod RandomStandardNormal RandomUniform RandomUniformInt Range
    Rank ReadVariableOp Real RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad
    Reshape ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad
    ResizeNearestNeighbor ResizeNearestNeighborGrad ResourceGather ResourceGatherNd Reverse
    ReverseSequence ReverseV2 RightShift Rint Roll Round Rsqrt RsqrtGrad ScaleAndTranslate
    ScaleAndTranslateGrad ScatterNd Select SelectV2 Selu SeluGrad Shape ShapeN Sigmoid SigmoidGrad
    Sign Sin Sinh Size Slice Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign
    SoftsignGrad SpaceToBatchND SpaceToDepth SparseSoftmaxCrossEntropyWithLogits Split SplitV Sqrt
    SqrtGrad Square SquaredDifference Squeeze StackPushV2 StackPopV2 StatelessMultinomial
    StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomNormal
    StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessTruncatedNormal
    StatelessTruncatedNormalV2 StopGradient StridedSlice StridedSliceGrad Sub Sum Tan Tanh
    TanhGrad TensorListConcatV2 TensorListElementShape TensorListFromTensor TensorListGather
    TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack TensorListReserve
    TensorListResize TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack
    TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate Tile
    TopKV2 Transpose TruncateDiv TruncateMod TruncatedNormal Unique UniqueV2 Unpack UnravelIndex
    UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound
    VarHandleOp VarIsInitializedOp VariableShape Where Xdivy Xlogy ZerosLike
    """.split()  # noqa: SIM905 - a list of so many lines would be hard to read
)
"""Ops whose work is a few operations an element, or none."""
