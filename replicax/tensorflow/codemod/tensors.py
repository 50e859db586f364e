"""Tensors as such: constants, shapes, ranges, printing, and what becomes of methods of tensors."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.adapting import Unconvertible, is_literal, literal
from replicax.tensorflow.codemod.op_calls import bound, filled, parameters, template_modules
from replicax.tensorflow.codemod.op_row import OpRow
from replicax.tensorflow.codemod.rules import Call, Rewriting

Converter = Callable[[Rewriting, cst.Call, cst.Call], cst.BaseExpression | None]
_STRING = "It holds a string, and JAX has no strings. Keep strings in Python or NumPy."
_SHAPE = (
    "Keras gives a shape as a tuple of numbers, on which arithmetic means something else. It is converted where it "
    "is indexed, unpacked, or the shape of a new tensor."
)
#: The kind of what `strategy.experimental_local_results` gives.
LOCAL_RESULTS = "LocalResults"
#: Functions that take a shape as an argument.
SHAPED = frozenset({"reshape", "zeros", "ones", "fill", "broadcast_to", "normal", "uniform", "truncated_normal"})


def refusing(convert: Converter) -> Converter:
    """Returns the function that refuses a call, with its reason, where `convert` raises `Unconvertible`."""

    def converted(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        try:
            return convert(rewriting, node, updated)
        except Unconvertible as error:
            name = rewriting.script.names.of(node.func) or cst.Module([]).code_for_node(node.func)
            rewriting.refuse(node, name, f"{str(error)[0].upper()}{str(error)[1:].rstrip('.')}.")
            return None

    return converted


def by_row(row: OpRow) -> Converter:
    """Returns the function that converts calls of a row's function."""

    def convert(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        result = filled(row, _as_tensors(rewriting, row, node, updated))
        for module in template_modules(result):
            rewriting.target(module)
        rewriting.note(node, row.name, f"{row.note[0].upper()}{row.note[1:]}." if row.note else "")
        return result

    return refusing(convert)


def uniform(floats: OpRow, integers: OpRow) -> Converter:
    """Returns the function that converts `tf.random.uniform`, whose dtype says what it draws."""

    def convert(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        given, _ = bound(floats.name, parameters(floats.signature), updated.args)
        dtype = given.get("dtype", cst.SimpleString('"float32"'))
        name = literal(dtype)
        row = integers if isinstance(name, str) and "int" in name else floats
        return by_row(row)(rewriting, node, updated)

    return refusing(convert)


def holds_string(node: cst.BaseExpression | None) -> bool:
    """Returns whether an expression is, or contains, a string."""
    if node is None or not is_literal(node):
        return isinstance(node, cst.FormattedString)
    return bool(m.findall(node, m.SimpleString() | m.ConcatenatedString()))


@refusing
def constant(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`tf.constant` and `tf.convert_to_tensor`: numbers become a tensor of the same dtype."""
    given, _ = bound("tf.constant", parameters("constant(value, dtype=None, shape=None)"), updated.args)
    original, _ = bound("tf.constant", parameters("constant(value, dtype=None, shape=None)"), node.args)
    if holds_string(original.get("value")) or rewriting.script.names.of(original.get("dtype", node)) == "tf.string":
        raise Unconvertible(_STRING)
    if "value" not in given or set(given) - {"value", "dtype", "shape"}:
        raise Unconvertible("It is converted with a value, a dtype and a shape only.")
    value = given["value"]
    dtype = given.get("dtype")
    if dtype is None and _is_wide(original["value"]):
        raise Unconvertible("It is an int64, since it is beyond 32 bits: set `jax_enable_x64`, and give the dtype.")
    result = (
        rewriting.code("keras.ops.convert_to_tensor({value})", value=value)
        if dtype is None
        else rewriting.code("keras.ops.convert_to_tensor({value}, dtype={dtype})", value=value, dtype=dtype)
    )
    shape = given.get("shape")
    if shape is None or (is_literal(shape) and literal(shape) is None):
        return result
    if not is_literal(original["value"]) or isinstance(literal(original["value"]), (list, tuple)):
        raise Unconvertible("With a shape it is converted for a single number only.")
    return rewriting.code("keras.ops.broadcast_to({result}, {shape})", result=result, shape=shape)


def _is_wide(value: cst.BaseExpression) -> bool:
    """Returns whether an expression of numbers, such as `2**40`, has an integer that 32 bits do not hold."""
    if not isinstance(value, (cst.Integer, cst.UnaryOperation, cst.BinaryOperation, cst.List, cst.Tuple)):
        return False
    if isinstance(value, (cst.List, cst.Tuple)):
        return any(_is_wide(each.value) for each in value.elements)
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, (cst.Power, cst.LeftShift)):
        sides = (value.left, value.right)
        if not all(isinstance(each, cst.Integer) and len(each.value) < 5 for each in sides):
            return False
        left, right = (cst.ensure_type(each, cst.Integer).evaluated_value for each in sides)
        number = left**right if isinstance(value.operator, cst.Power) else left << right
    else:
        found = literal(value) if is_literal(value) else None
        number = found if isinstance(found, int) else 0
    return not -(2**31) <= number < 2**31


@refusing
def shape(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`tf.shape`, where a tuple of numbers is as good as a tensor."""
    given, _ = bound("tf.shape", parameters("shape(input, out_type=None)"), updated.args)
    if "input" not in given or not _takes_a_tuple(rewriting, node):
        raise Unconvertible(_SHAPE)
    return rewriting.code("keras.ops.shape({value})", value=given["input"])


def _takes_a_tuple(rewriting: Rewriting, node: cst.BaseExpression) -> bool:
    names = rewriting.script.names
    parent = names.parent(node)
    if isinstance(parent, cst.Subscript):
        return all(isinstance(each.slice, cst.Index) for each in parent.slice)
    if isinstance(parent, cst.Arg):
        call = names.parent(parent)
        if not isinstance(call, cst.Call):
            return False
        called = names.of(call.func) or ""
        return called.rpartition(".")[2] in SHAPED or m.matches(call.func, m.Name("len"))
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        target = parent.targets[0].target
        if isinstance(target, (cst.Tuple, cst.List)):
            return True
        if isinstance(target, cst.Name):
            return _all_uses(rewriting, target, _takes_a_tuple)
    return False


def _all_uses(rewriting: Rewriting, target: cst.Name, allowed: Callable[[Rewriting, cst.BaseExpression], bool]) -> bool:
    """Returns whether a name is assigned once, and all its uses are allowed."""
    assignments = rewriting.script.names.assignments(target)
    if len(assignments) != 1:
        return False
    uses = [access.node for assignment in assignments for access in assignment.references]
    return all(isinstance(use, cst.Name) and allowed(rewriting, use) for use in uses)


@refusing
def number_range(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`tf.range`: Python's `range` in a loop, an array elsewhere."""
    signature = "range(limit)" if len(node.args) == 1 else "range(start, limit, delta=1, dtype=None)"
    given, _ = bound("tf.range", parameters(signature), updated.args)
    looped = isinstance(rewriting.script.names.parent(node), cst.For)
    order = [given[name] for name in ("start", "limit", "delta") if name in given]
    if "limit" not in given or (looped and "dtype" in given) or set(given) - {"start", "limit", "delta", "dtype"}:
        raise Unconvertible("These arguments have no counterpart in Python's `range`.")
    if looped:
        rewriting.note(node, "tf.range", "It is Python's `range`: in a function that is traced, the loop is unrolled.")
    args = [cst.Arg(value) for value in order]
    if "dtype" in given:
        args.append(cst.Arg(given["dtype"], cst.Name("dtype"), equal=_EQUAL))
    func = cst.Name("range") if looped else rewriting.target("keras.ops.arange")
    return cst.Call(func, args)


_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


@refusing
def printed(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`tf.print`, which prints values, also from a compiled program."""
    text, values = [], []
    if any(arg.keyword is not None or arg.star for arg in updated.args):
        raise Unconvertible("It is converted without keywords and stars only.")
    if not _is_inside(rewriting, node, (cst.FunctionDef, cst.Lambda)):
        return updated.with_changes(func=cst.Name("print"))  # No program is traced here.
    for arg in updated.args:
        if isinstance(arg.value, (cst.SimpleString, cst.FormattedString)) and not isinstance(
            arg.value, cst.SimpleString
        ):
            raise Unconvertible("It prints an f-string: give `jax.debug.print` a format instead.")
        if isinstance(arg.value, cst.SimpleString):
            text.append(str(arg.value.evaluated_value).replace("{", "{{").replace("}", "}}"))
        else:
            text.append("{}")
            values.append(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT))
    rewriting.note(node, "tf.print", "It prints arrays as NumPy does, to the standard output.")
    quoted = cst.parse_expression(
        '"' + " ".join(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    )
    return cst.Call(rewriting.target("jax.debug.print"), [cst.Arg(quoted), *values])


def _is_inside(rewriting: Rewriting, node: cst.CSTNode, outer: tuple[type[cst.CSTNode], ...]) -> bool:
    around = rewriting.script.names.parent(node)
    while around is not None and not isinstance(around, outer):
        around = rewriting.script.names.parent(around)
    return around is not None


def as_numpy(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`x.numpy()`."""
    receiver = cst.ensure_type(updated.func, cst.Attribute).value
    return rewriting.code("np.asarray({x})", x=receiver) if not node.args else updated


@refusing
def backend_value(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`tf.keras.backend.get_value(x)`."""
    given, _ = bound("tf.keras.backend.get_value", parameters("get_value(x)"), updated.args)
    if "x" not in given:
        raise Unconvertible("The argument `x` is missing.")
    return rewriting.code("np.asarray({x})", x=given["x"])


def as_list(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`x.shape.as_list()`."""
    receiver = cst.ensure_type(updated.func, cst.Attribute).value
    return rewriting.code("list({x})", x=receiver) if not node.args else updated


def num_elements(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`x.shape.num_elements()`."""
    receiver = cst.ensure_type(updated.func, cst.Attribute).value
    return rewriting.code("int(np.prod({x}))", x=receiver) if not node.args else updated


def top_k_part(place: int) -> Callable[[Rewriting, cst.BaseExpression, cst.BaseExpression], cst.BaseExpression | None]:
    """Returns the function that writes `.values` and `.indices` of `tf.math.top_k` as a place in a tuple."""

    def part(rewriting: Rewriting, node: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression | None:
        return rewriting.code(f"{{x}}[{place}]", x=cst.ensure_type(updated, cst.Attribute).value)

    return part


def get_shape(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`x.get_shape()`."""
    func = cst.ensure_type(updated.func, cst.Attribute)
    return func.with_changes(attr=cst.Name("shape")) if not node.args else updated


def shape_rank(
    rewriting: Rewriting, node: cst.BaseExpression, updated: cst.BaseExpression
) -> cst.BaseExpression | None:
    """`x.shape.rank` and `x.shape.ndims`; attributes of this name of anything else stay."""
    shapes = m.Attribute(value=m.Attribute(attr=m.Name("shape")) | m.Call(func=m.Attribute(attr=m.Name("get_shape"))))
    if not m.matches(node, shapes):
        return updated
    return rewriting.code("len({x})", x=cst.ensure_type(updated, cst.Attribute).value)


def version(rewriting: Rewriting, node: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression | None:
    """`tf.__version__` in a `print`; anything else that depends on it is refused."""
    parent = rewriting.script.names.parent(node)
    call = rewriting.script.names.parent(parent) if isinstance(parent, cst.Arg) else None
    if isinstance(call, cst.Call) and m.matches(call.func, m.Name("print")):
        rewriting.note(node, "tf.__version__", "It is replicax's version now.")
        return rewriting.target("rx.__version__")
    rewriting.refuse(node, "tf.__version__", "A decision by TensorFlow's version has to be decided by hand.")
    return None


# Arguments that TensorFlow takes as tensors and Keras does not: lists, and variables for some functions.


#: Parameters that are tensors, wherever they stand.
_TENSORS = frozenset(
    [
        *("x", "y", "a", "b", "t", "input", "inputs", "tensor", "value", "input_tensor", "data", "segment_ids", "args"),
        *("targets", "predictions", "indices", "updates", "condition", "logits", "labels", "features", "image"),
        *("images", "filters"),
    ]
)
#: Functions of Keras that do not take a variable.
_NO_VARIABLES = (
    *("where", "moments", "top_k", "in_top_k", "unstack", "max_pool", "average_pool", "image.resize", "all", "any"),
    *("count_nonzero", "map", "vectorized_map", "stop_gradient"),
)
_LIKE = ("zeros_like", "ones_like")


def _as_tensors(rewriting: Rewriting, row: OpRow, node: cst.Call, updated: cst.Call) -> cst.Call:
    """Returns a call of a row's function whose operands are tensors, where Keras takes nothing else."""
    known = parameters(row.signature)
    function = row.template.partition("(")[0].removeprefix("keras.ops.")
    args = []
    for place, (before, arg) in enumerate(zip(node.args, updated.args, strict=True)):
        positional = known.names[place] if place < len(known.names) else known.rest
        parameter = arg.keyword.value if arg.keyword is not None else positional
        if not arg.star and _is_local(rewriting, before.value):
            arg = arg.with_changes(value=rewriting.code("jax.device_get({value})", value=arg.value))
        if parameter in _TENSORS and not arg.star and _is_wrapped(rewriting, function, before.value):
            value = rewriting.code("keras.ops.convert_to_tensor({value})", value=arg.value)
            arg = arg.with_changes(value=value)
        args.append(arg)
    return updated.with_changes(args=args)


def _is_local(rewriting: Rewriting, value: cst.BaseExpression) -> bool:
    """Returns whether an operand is known to be local results: JAX computes with none that lie on several devices."""
    function = rewriting.script.function(value)
    decorators = [each.decorator for each in function.decorators] if function is not None else []
    called = [each.func if isinstance(each, cst.Call) else each for each in decorators]
    if any(rewriting.script.names.of(each) == "tf.function" for each in called):
        return False  # Inside of a program nothing lies anywhere.
    asked = m.Call(func=m.Attribute(attr=m.Name("experimental_local_results") | m.Name("local_results")))
    return m.matches(value, asked) or rewriting.script.kinds.of(value) == LOCAL_RESULTS


def _is_wrapped(rewriting: Rewriting, function: str, value: cst.BaseExpression) -> bool:
    kind = rewriting.script.kinds.of(value)
    if function in _LIKE:
        return kind != "tf.Tensor"
    if kind in ("list", "tuple", LOCAL_RESULTS) or isinstance(value, (cst.List, cst.Tuple, cst.ListComp)):
        return True
    return function in _NO_VARIABLES and rewriting.script.kinds.is_a(value, "tf.Variable")


# Variables, checkpoints and models, where the call has to be another one.


_NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def variable(rule: Call) -> Converter:
    """Returns the function that converts `tf.Variable(...)`, by a rule of its arguments: a variable has 32 bits."""

    def convert(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        args = rewriting.arguments(rule, "tf.Variable", node, updated.args)
        if args is None:
            return None
        narrowed = [_narrowed(arg) for arg in args]
        return updated.with_changes(func=rewriting.renamed(node.func, rule.target), args=narrowed)

    return convert


def _narrowed(arg: cst.Arg) -> cst.Arg:
    value = arg.value
    if arg.keyword is None or arg.keyword.value != "dtype" or not isinstance(value, cst.SimpleString):
        return arg
    narrow = _NARROW.get(str(value.evaluated_value))
    return arg if narrow is None else arg.with_changes(value=cst.SimpleString(f'"{narrow}"'))


def restores(node: cst.CSTNode) -> bool:
    """Returns whether an expression restores a checkpoint, in a call that can be told to be partial."""
    return m.matches(node, m.Call(func=m.Attribute(attr=m.Name("restore"))))


def with_partial(call: cst.Call) -> cst.Call:
    """Returns a call of `restore` with `partial=True`."""
    if any(arg.keyword is not None and arg.keyword.value == "partial" for arg in call.args):
        return call
    partial = cst.Arg(cst.Name("True"), keyword=cst.Name("partial"), equal=_EQUAL)
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return call.with_changes(args=[*(arg.with_changes(comma=comma) for arg in call.args), partial])


@refusing
def expect_partial(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`checkpoint.restore(path).expect_partial()`."""
    restored = cst.ensure_type(updated.func, cst.Attribute).value
    if not restores(restored):
        raise Unconvertible("A restore compares the names at once: write `restore(path, partial=True)` instead")
    return with_partial(cst.ensure_type(restored, cst.Call))


@refusing
def built(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`model.build(shape)` of a class of the script: in Keras 3 that builds nothing inside, and a call does."""
    model = cst.ensure_type(node.func, cst.Attribute).value
    made = rewriting.script.kinds.class_of(model)
    if made is None or not rewriting.script.kinds.leaves_to_base(
        made, "build", "tf.keras.Model", "tf.keras.models.Model"
    ):
        return updated
    given, _ = bound("tf.keras.Model.build", parameters("build(input_shape)"), updated.args)
    shape = given.get("input_shape")
    sizes = [each.value for each in shape.elements] if isinstance(shape, (cst.Tuple, cst.List)) else []
    if not sizes or any(isinstance(size, (cst.Tuple, cst.List, cst.Dict)) for size in sizes):
        raise Unconvertible(
            "Keras 3's `build` of a class that has none builds nothing inside: call the model once on zeros of this "
            "shape instead, with 1 for None"
        )
    ones = [cst.Integer("1") if m.matches(size, m.Name("None")) else size for size in sizes]
    code = "{model}(keras.ops.zeros({shape}))"
    receiver = cst.ensure_type(updated.func, cst.Attribute).value
    return rewriting.code(code, model=receiver, shape=cst.Tuple([cst.Element(size) for size in ones]))
