"""Pipelines of tf.data become pipelines of Grain, whose elements have the same order.

A pipeline that has a step without a counterpart stays TensorFlow's, with the functions that it maps: strategies and
`fit` take datasets of tf.data as well. Then all pipelines of the script stay (`script.keeps_tf_data`).
"""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.adapting import Unconvertible, is_literal, is_none, literal
from replicax.tensorflow.codemod.op_calls import bound, parameters
from replicax.tensorflow.codemod.rules import Mentioning, Rewrite, Rewriting
from replicax.tensorflow.codemod.script import Script
from replicax.tensorflow.codemod.tensors import Converter

DATASET = "tf.data.Dataset"
ORDER = (
    "Grain shuffles all rows by a seed, and TensorFlow within a buffer: the order is another one. Each pass over the "
    "dataset has the same order: for another one in each epoch, write `shuffle(seed=...).repeat(epochs)` and iterate "
    "once over all epochs, or build the dataset in each epoch with `shuffle(seed=epoch)`."
)
ARITY = "It has to be a function of the script, or a lambda: Grain gives it an element as one argument."
_POLICY = (
    "Strategies shard Grain's datasets by rows. The policy may be said too: `strategy.distribute_dataset(dataset, "
    "rx.InputOptions(auto_shard_policy=...))`."
)
Step = Callable[[Rewriting, cst.Call, cst.BaseExpression, dict[str, cst.BaseExpression]], cst.BaseExpression | None]


def kept(convert: Converter, name: str) -> Converter:
    """Returns the function that converts a step of a pipeline, if the script does not keep it."""

    def converted(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        if rewriting.script.tf_data == "keep":
            return None
        try:
            result = convert(rewriting, node, updated)
        except Unconvertible as error:
            # Reported even if the pipelines stay: they do because of this step.
            rewriting.refuse(node, name, f"{str(error)[0].upper()}{str(error)[1:].rstrip('.')}.")
            return None
        return None if rewriting.script.keeps_tf_data else result

    return converted


def refused(name: str, reason: str) -> Rewrite:
    """Returns the rule of something without a counterpart."""

    def call(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        raise Unconvertible(reason)

    def mention(
        rewriting: Rewriting, node: cst.BaseExpression, updated: cst.BaseExpression
    ) -> cst.BaseExpression | None:
        if rewriting.script.tf_data != "keep":
            rewriting.refuse(node, name, reason)
        return None

    return Rewrite(kept(call, name), mention)


def mentioned(convert: Callable[[Rewriting], cst.BaseExpression]) -> Mentioning:
    """Returns the function that answers a mention, if the script does not keep its pipelines."""

    def mention(
        rewriting: Rewriting, node: cst.BaseExpression, updated: cst.BaseExpression
    ) -> cst.BaseExpression | None:
        return None if rewriting.script.keeps_tf_data else convert(rewriting)

    return mention


def made(name: str, template: str) -> Rewrite:
    """Returns the function that converts a call that makes a dataset; `{x}` stands for its one argument."""

    def convert(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        values = [arg.value for arg in updated.args if arg.keyword is None or arg.keyword.value != "name"]
        if len(values) != 1:
            raise Unconvertible("it is converted with one argument only")
        return rewriting.code(template, x=values[0])

    return Rewrite(kept(convert, name))


def step(signature: str) -> Callable[[Step], Converter]:
    """Returns a decorator of functions that convert a dataset's method; they get the arguments by parameter."""
    known = parameters(signature)

    def decorate(convert: Step) -> Converter:
        def converted(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
            given, _ = bound(signature, known, updated.args)
            unknown = set(given) - {*known.names, "num_parallel_calls", "deterministic"}
            if unknown:
                raise Unconvertible(f"the argument `{unknown.pop()}` has no counterpart in Grain")
            missing = [name for name in known.names if name not in given and name not in known.defaults]
            if missing:
                raise Unconvertible(f"the argument `{missing[0]}` is missing")
            return convert(rewriting, node, cst.ensure_type(updated.func, cst.Attribute).value, given)

        return kept(converted, f"{DATASET}.{signature.partition('(')[0]}")

    return decorate


def written(signature: str, template: str) -> Converter:
    """Returns the function that writes a method by a template of the dataset, `{ds}`, and the arguments."""

    @step(signature)
    def convert(
        rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
    ) -> cst.BaseExpression | None:
        return rewriting.code(template, ds=dataset, **given)

    return convert


@step("batch(batch_size, drop_remainder=False)")
def batch(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`batch`: the same, with `drop_remainder` by keyword."""
    if "drop_remainder" not in given:
        return rewriting.code("{ds}.batch({n})", ds=dataset, n=given["batch_size"])
    drop = given["drop_remainder"]
    return rewriting.code("{ds}.batch({n}, drop_remainder={drop})", ds=dataset, n=given["batch_size"], drop=drop)


@step("shuffle(buffer_size, seed=None, reshuffle_each_iteration=None)")
def shuffle(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`shuffle`: of all rows. An endless dataset cannot be shuffled, so it is shuffled before it is repeated."""
    if not rewriting.script.keeps_tf_data:
        rewriting.note(node, "tf.data.Dataset.shuffle", ORDER)
    seed = cst.Integer("0") if is_none(given.get("seed")) else given["seed"]
    if isinstance(dataset, cst.Call) and m.matches(dataset.func, m.Attribute(attr=m.Name("repeat"))):
        repeated = cst.ensure_type(dataset.func, cst.Attribute)
        inner = rewriting.code("{ds}.shuffle(seed={seed})", ds=repeated.value, seed=seed)
        return dataset.with_changes(func=repeated.with_changes(value=inner))
    return rewriting.code("{ds}.shuffle(seed={seed})", ds=dataset, seed=seed)


@step("repeat(count=None)")
def repeat(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`repeat`: -1 means without end, as no number does."""
    count = given.get("count")
    if count is None or (is_literal(count) and literal(count) in (None, -1)):
        return rewriting.code("{ds}.repeat()", ds=dataset)
    return rewriting.code("{ds}.repeat({n})", ds=dataset, n=count)


@step("prefetch(buffer_size=None)")
def prefetch(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`prefetch`: it changes no element, and reading ahead happens by itself."""
    return dataset


@step("cache(filename='')")
def cache(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`cache` in memory: it changes no element."""
    if "filename" in given and not (is_literal(given["filename"]) and literal(given["filename"]) == ""):
        raise Unconvertible("there is no cache in files of what a pipeline yields")
    return dataset


@step("take(count)")
def take(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`take`: a slice."""
    if is_literal(given["count"]) and literal(given["count"]) == -1:
        return dataset
    return rewriting.code("{ds}[:{n}]", ds=dataset, n=given["count"])


skip = written("skip(count)", "{ds}[{count}:]")
shard = written("shard(num_shards, index)", "{ds}[{index}::{num_shards}]")
concatenate = written("concatenate(dataset)", "grain.MapDataset.concatenate([{ds}, {dataset}])")
iterator = written("as_numpy_iterator()", "iter({ds})")  # Grain's elements are NumPy's.
cardinality = written("cardinality()", "len({ds})")
single = written("get_single_element()", "{ds}[0]")


@step("enumerate(start=0)")
def enumerate_(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`enumerate`: pairs of a number and an element."""
    if "start" in given:
        raise Unconvertible("Grain counts from 0")
    return rewriting.code("{ds}.map_with_index(lambda index, element: (index, element))", ds=dataset)


@step("map(map_func)")
def map_(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`map`: of an element that is a tuple TensorFlow gives the parts as arguments, Grain the tuple."""
    original, _ = bound("map", parameters("map(map_func)"), node.args)
    return rewriting.code("{ds}.map({f})", ds=dataset, f=applied(rewriting, original["map_func"], given["map_func"]))


def applied(rewriting: Rewriting, original: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
    """Returns a function of the parts of an element as one of the element."""
    if arity(rewriting, original) == 1:
        return updated
    if isinstance(updated, cst.Lambda):
        updated = updated.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return rewriting.code("lambda element: {f}(*element)", f=updated)


def arity(rewriting: Rewriting, function: cst.BaseExpression) -> int:
    """Returns how many arguments a function of a step takes: how many parts an element has."""
    found: cst.CSTNode | None = function
    if isinstance(function, cst.Name):
        found = rewriting.script.kinds.definition(function)
    if not isinstance(found, (cst.Lambda, cst.FunctionDef)):
        raise Unconvertible(ARITY)
    known = found.params
    if known.star_kwarg is not None or isinstance(known.star_arg, cst.Param) or known.posonly_params:
        raise Unconvertible(ARITY)
    return len([each for each in known.params if each.default is None])


def next_of(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`iterator.get_next()`."""
    return rewriting.code("next({it})", it=cst.ensure_type(updated.func, cst.Attribute).value)


@step("with_options(options)")
def with_options(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`with_options`: strategies shard Grain's datasets by rows; another policy is an option of theirs."""
    policies = {policy for policy in policies_of(rewriting.script) if policy not in ("AUTO", "DATA")}
    if policies and not _is_unused(rewriting, node):
        raise Unconvertible(
            f"its policy of sharding is {policies.pop()}: write `strategy.distribute_dataset(dataset, rx.InputOptions("
            "auto_shard_policy=...))`"
        )
    if policies_of(rewriting.script):
        rewriting.note(node, "tf.data.Options", _POLICY)
    return dataset


def policies_of(script: Script) -> set[str]:
    """Returns the names of the policies that a script assigns to `auto_shard_policy` of options."""
    found = set()
    for each in m.findall(script.module, m.Assign()):
        assign = cst.ensure_type(each, cst.Assign)
        if m.matches(assign.targets[0].target, m.Attribute(attr=m.Name("auto_shard_policy"))):
            found.add(cst.Module([]).code_for_node(assign.value).rpartition(".")[2].rstrip(") \n"))
    return found


def _is_unused(rewriting: Rewriting, node: cst.Call) -> bool:
    parent = rewriting.script.names.parent(node)
    if not (isinstance(parent, cst.Assign) and isinstance(parent.targets[0].target, cst.Name)):
        return False
    target = parent.targets[0].target
    assignments = rewriting.script.names.assignments(target)
    return len(assignments) == 1 and not any(assignment.references for assignment in assignments)
