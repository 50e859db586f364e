"""Reading collectives from compiled programs: as XLA has written them for 8 CPU devices, and as it does for GPUs."""

# ruff: noqa: E501 - XLA writes long lines

from __future__ import annotations

import pytest

from replicax.dtensor.communication import Collective, report_of

HEADER = "HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[2,8]{1,0})->f32[2,8]{1,0}}"

# From jaxlib 0.10.2 on 8 CPU devices.
RECORDED = {
    "combined": r"""
ENTRY %main.0_spmd (param: f32[4,64]) -> f32[] {
  %dot.3 = f32[128,64]{1,0} dot(%a, %b), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %wrapped_reduce = f32[128]{0} fusion(%c, %d), kind=kLoop, calls=%wrapped_reduce_computation
  %dot.4 = f32[10,128]{1,0} dot(%a, %b), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %multiply_reduce_fusion = f32[] fusion(%c, %d), kind=kLoop, calls=%fused_computation.3
  %all-reduce.4 = (f32[128,64]{1,0}, f32[128]{0}, f32[10,128]{1,0}, f32[]) all-reduce(%dot.3, %wrapped_reduce, %dot.4, %multiply_reduce_fusion), channel_id=1, replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}, use_global_device_ids=true, to_apply=%add.clone, metadata={op_name="jit(step)/(transpose(jvp())/dot_general:jvp()/reduce_sum)" stack_frame_id=11}
  %get-tuple-element = f32[128,64]{1,0} get-tuple-element(%all-reduce.4), index=0, metadata={op_name="all-reduce(x)"}
  ROOT %get-tuple-element.3 = f32[] get-tuple-element(%all-reduce.4), index=3
}
""",
    "groups": r"""
ENTRY %main.0_spmd (param.1: f32[2,8]) -> (f32[2,8], f32[2,8]) {
  %param.1 = f32[2,8]{1,0} parameter(0), sharding={devices=[8,1]<=[8]}, metadata={op_name="x"}
  %psum_invariant.14 = f32[2,8]{1,0} all-reduce(%param.1), channel_id=1, replica_groups={{0,2,4,6},{1,3,5,7}}, use_global_device_ids=true, to_apply=%region_0.0, metadata={op_name="jit(<lambda>)/shard_map/psum_invariant" stack_frame_id=8}
  ROOT %tuple.5 = (f32[2,8]{1,0}, f32[2,8]{1,0}) tuple(%psum_invariant.14, %param.1)
}
""",
    "others": r"""
ENTRY %main.0_spmd (param.1: f32[2,8]) -> (f32[2,1], f32[8,2,8], f32[2,8]) {
  %param.1 = f32[2,8]{1,0} parameter(0), sharding={devices=[8,1]<=[8]}, metadata={op_name="x"}
  %wrapped_copy = f32[2,8]{0,1} fusion(%param.1), kind=kLoop, calls=%wrapped_copy_computation, metadata={op_name="x"}
  %bitcast = f32[1,2,8]{2,1,0} bitcast(%param.1), metadata={op_name="x"}
  %ppermute.3 = f32[2,8]{1,0} collective-permute(%param.1), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}}, metadata={op_name="jit(<lambda>)/shard_map/ppermute" stack_frame_id=10}
  %reduce_scatter.7 = f32[2,1]{0,1} reduce-scatter(%wrapped_copy), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, dimensions={1}, to_apply=%region_0.0, metadata={op_name="jit(<lambda>)/shard_map/reduce_scatter" stack_frame_id=8}
  %all_gather.7 = f32[8,2,8]{2,1,0} all-gather(%bitcast), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, use_global_device_ids=true, metadata={op_name="jit(<lambda>)/shard_map/all_gather" stack_frame_id=9}
  ROOT %tuple.7 = (f32[2,1]{0,1}, f32[8,2,8]{2,1,0}, f32[2,8]{1,0}) tuple(%reduce_scatter.7, %all_gather.7, %ppermute.3)
}
""",
    "all-to-all of parts": r"""
ENTRY %main.0_spmd (param.1: f32[2,8]) -> f32[2,1] {
  %wrapped_slice.6 = f32[2,1]{1,0} fusion(%param.1), kind=kLoop, calls=%wrapped_slice_computation.6
  %wrapped_slice.7 = f32[2,1]{1,0} fusion(%param.1), kind=kLoop, calls=%wrapped_slice_computation.7
  %wrapped_slice = f32[2,1]{1,0} fusion(%param.1), kind=kLoop, calls=%wrapped_slice_computation
  %wrapped_slice.1 = f32[2,1]{1,0} fusion(%param.1), kind=kLoop, calls=%wrapped_slice_computation.1
  %wrapped_slice.2 = f32[2,1]{1,0} fusion(%param.1), kind=kLoop, calls=%wrapped_slice_computation.2
  %wrapped_slice.3 = f32[2,1]{1,0} fusion(%param.1), kind=kLoop, calls=%wrapped_slice_computation.3
  %wrapped_slice.4 = f32[2,1]{1,0} fusion(%param.1), kind=kLoop, calls=%wrapped_slice_computation.4
  %wrapped_slice.5 = f32[2,1]{1,0} fusion(%param.1), kind=kLoop, calls=%wrapped_slice_computation.5
  %all-to-all = (f32[2,1]{1,0}, f32[2,1]{1,0}, f32[2,1]{1,0}, f32[2,1]{1,0}, f32[2,1]{1,0}, /*index=5*/f32[2,1]{1,0}, f32[2,1]{1,0}, f32[2,1]{1,0}) all-to-all(%wrapped_slice, %wrapped_slice.1, %wrapped_slice.2, %wrapped_slice.3, %wrapped_slice.4, /*index=5*/%wrapped_slice.5, %wrapped_slice.6, %wrapped_slice.7), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, metadata={op_name="jit(<lambda>)/shard_map/all_to_all" stack_frame_id=11}
  ROOT %get-tuple-element.4 = f32[2,1]{1,0} get-tuple-element(%all-to-all), index=0
}
""",
    "in a loop's condition": r"""
%region_0.0_spmd (param: f32[2,64]) -> f32[2,64] {
  %param = f32[2,64]{1,0} parameter(0), metadata={op_name="jit(wh)/while"}
  ROOT %broadcast_multiply_fusion = f32[2,64]{1,0} fusion(%param), kind=kLoop, calls=%fused_computation, metadata={op_name="jit(wh)/while/body/mul" stack_frame_id=7}
}

%region_1.0_spmd (param.1: f32[2,64]) -> pred[] {
  %param.1 = f32[2,64]{1,0} parameter(0), metadata={op_name="jit(wh)/while"}
  %constant.2.clone = f32[] constant(0)
  %constant.3.clone = f32[] constant(100)
  %wrapped_reduce = f32[] fusion(%param.1, %constant.2.clone), kind=kLoop, calls=%wrapped_reduce_computation, metadata={op_name="jit(wh)/while/cond/reduce_sum" stack_frame_id=8}
  %all-reduce = f32[] all-reduce(%wrapped_reduce), channel_id=1, replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}, use_global_device_ids=true, to_apply=%region_2.0.clone, metadata={op_name="jit(wh)/while/cond/reduce_sum" stack_frame_id=8}
  ROOT %wrapped_compare = pred[] fusion(%all-reduce, %constant.3.clone), kind=kLoop, calls=%wrapped_compare_computation, metadata={op_name="jit(wh)/while/cond/lt" stack_frame_id=8}
}

ENTRY %main.0_spmd (param.2: f32[2,64]) -> f32[2,64] {
  %param.2 = f32[2,64]{1,0} parameter(0), sharding={devices=[8,1]<=[8]}, metadata={op_name="kept[0]"}
  %copy.3 = f32[2,64]{1,0} copy(%param.2)
  ROOT %while.6 = f32[2,64]{1,0} while(%copy.3), condition=%region_1.0_spmd, body=%region_0.0_spmd, metadata={op_name="jit(wh)/while" stack_frame_id=6}
}
""",
}  # fmt: skip


def collectives(text: str, devices: int = 8) -> list[Collective]:
    return list(report_of(f"{HEADER}, num_partitions={devices}\n{text}").collectives)


def collective(line: str, devices: int = 8) -> Collective:
    """Reads one line; its operands `%p` and `%q` are 8 x 4 and 16 floats."""
    operands = "  %p = f32[8,4]{1,0} parameter(0)\n  %q = f32[16]{0} parameter(1)"
    (found,) = collectives(f"\nENTRY %main (p: f32[8,4]) -> f32[] {{\n{operands}\n  {line}\n}}\n", devices)
    return found


def test_recorded_all_reduce_of_several_arrays_is_one():
    floats = 128 * 64 + 128 + 10 * 128 + 1
    assert collectives(RECORDED["combined"]) == [Collective("all-reduce", 4 * floats, 8)]


def test_recorded_list_of_groups():
    assert collectives(RECORDED["groups"]) == [Collective("all-reduce", 64, 4)]


def test_recorded_permute_scatter_and_gather():
    assert collectives(RECORDED["others"]) == [
        Collective("collective-permute", 64, 8),
        Collective("reduce-scatter", 64, 8),
        Collective("all-gather", 64, 8),
    ]


def test_recorded_all_to_all_of_parts_is_one():
    assert collectives(RECORDED["all-to-all of parts"]) == [Collective("all-to-all", 64, 8)]


def test_recorded_condition_of_a_loop():
    assert collectives(RECORDED["in a loop's condition"]) == [Collective("all-reduce", 4, 8, in_loop=True)]


def test_what_a_loop_calls_is_in_the_loop():
    text = """
%inner (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  ROOT %sum = f32[4]{0} all-reduce(%a), replica_groups={}, to_apply=%add
}

%branch (c: f32[4]) -> f32[4] {
  %c = f32[4]{0} parameter(0)
  ROOT %call = f32[4]{0} call(%c), to_apply=%inner
}

%body (d: f32[4]) -> f32[4] {
  %d = f32[4]{0} parameter(0)
  ROOT %choice = f32[4]{0} conditional(%i, %d, %d), branch_computations={%other, %branch}
}

ENTRY %main (e: f32[4]) -> f32[4] {
  %e = f32[4]{0} parameter(0)
  %f = f32[4]{0} all-reduce(%e), replica_groups={}, to_apply=%add
  ROOT %loop = f32[4]{0} while(%f), condition=%cond, body=%body
}
"""
    assert [found.in_loop for found in collectives(text)] == [True, False]


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{}", 8),
        ("{{0,1},{2,3},{4,5},{6,7}}", 2),
        ("{{0,1,2},{3,4,5,6,7}}", 5),
        ("{{0,1,2,3,4,5,6,7}}", 8),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("[1,8]<=[8]", 8),
        ("mesh['axis_0'=8,'axis_1'=1] {'axis_0'}", 8),
        ("mesh['batch'=4,'model'=2] {'model'}", 2),
        ("mesh['batch'=2,'rows'=2,'model'=2] {'batch','model'}", 4),
        ("mesh['axis_0'=8] {'axis_0':(2)4}", 4),
        ("mesh['axis_0'=8,'axis_1'=8] {'axis_0':(2)4,'axis_1':(4)2}", 8),
        ("mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'x'}", 4),
        ("mesh[x=4,y=2] {x}", 4),
    ],
)
def test_group_size(groups: str, size: int):
    line = f"%sum = f32[8,4] all-reduce(%p), channel_id=1, replica_groups={groups}, to_apply=%add"
    assert collective(line).group_size == size


def test_without_groups_all_replicas_and_partitions_communicate():
    text = HEADER + ", replica_count=2, num_partitions=4\nENTRY %main () -> f32[] {\n  %a = f32[2] all-gather(%b)\n}"
    assert report_of(text).num_devices == 8
    assert report_of(text).collectives[0].group_size == 8


# As XLA writes for GPUs: a start and its end. Hand-made after XLA's own tests.
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "%s = f32[8,4]{1,0} all-reduce-start(%p), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add\n"
            "  ROOT %d = f32[8,4]{1,0} all-reduce-done(%s)",
            Collective("all-reduce", 128, 8),
        ),
        (
            "%s = (f32[8,4]{1,0}, f32[32,4]{1,0}) all-gather-start(%p), replica_groups=[2,4]<=[8], dimensions={0},"
            ' backend_config={"collective_backend_config":{"is_sync":true}}\n'
            "  ROOT %d = f32[32,4]{1,0} all-gather-done(%s)",
            Collective("all-gather", 128, 4),
        ),
        (
            "%s = ((f32[8,4]{1,0}, f32[16]{0}), (f32[32,4]{1,0}, f32[64]{0})) all-gather-start(%p, %q), "
            "replica_groups=[2,4]<=[8], dimensions={0}\n"
            "  ROOT %d = (f32[32,4]{1,0}, f32[64]{0}) all-gather-done(%s)",
            Collective("all-gather", 192, 4),
        ),
        (
            "%s = ((f32[8,4]{1,0}), f32[1,4]{1,0}) reduce-scatter-start(f32[8,4]{1,0} %p), replica_groups={}, "
            "dimensions={0}, to_apply=%add\n  ROOT %d = f32[1,4]{1,0} reduce-scatter-done(%s)",
            Collective("reduce-scatter", 128, 8),
        ),
        (
            "%s = (f32[8,4]{1,0:T(8,128)S(1)}, f32[8,4]{1,0}, u32[], u32[]) collective-permute-start(%p), "
            "source_target_pairs={{0,1},{1,0}}\n  ROOT %d = f32[8,4]{1,0} collective-permute-done(%s)",
            Collective("collective-permute", 128, 2),
        ),
        (
            "%s = ((f32[16]{0}), f32[16]{0}, u32[]) all-to-all-start(%q), replica_groups={{0,1},{2,3},{4,5},{6,7}}, "
            "dimensions={0}\n  ROOT %d = f32[16]{0} all-to-all-done(%s)",
            Collective("all-to-all", 64, 2),
        ),
        (
            "%s = f32[16]{0} collective-broadcast(q), replica_groups={{0,1,2,3}}",
            Collective("collective-broadcast", 64, 4),
        ),
    ],
)
def test_asynchronous_collectives_count_once(lines: str, expected: Collective):
    assert collective(lines) == expected


def test_a_generic_start_counts_where_its_computation_is_written():
    text = """
%async_computation (a: f32[16]) -> f32[16] {
  %a = f32[16]{0} parameter(0)
  ROOT %all-to-all = f32[16]{0} all-to-all(%a), replica_groups={}, dimensions={0}
}, execution_thread="parallel"

ENTRY %main (b: f32[16]) -> f32[16] {
  %b = f32[16]{0} parameter(0)
  %all-to-all-start = ((f32[16]{0}), f32[16]{0}) async-start(%b), calls=%async_computation
  ROOT %all-to-all-done = f32[16]{0} async-done(%all-to-all-start), calls=%async_computation
}
"""
    assert collectives(text) == [Collective("all-to-all", 64, 8)]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("pred", 6), ("s8", 6), ("bf16", 12), ("f8e4m3fn", 6), ("s4", 3), ("f64", 48), ("c64", 48), ("u32", 24)],
)
def test_bytes_of_dtypes(dtype: str, size: int):
    line = f"%a = {dtype}[2,3] parameter(0)\n  %s = {dtype}[2,3]{{1,0}} all-reduce(%a), replica_groups={{}}"
    assert collective(line).payload_bytes == size


def test_scalars_and_dynamic_lengths():
    assert collective("%a = f32[] parameter(0)\n  %s = f32[] all-reduce(%a)").payload_bytes == 4
    assert collective("%a = f32[<=5] parameter(0)\n  %s = f32[<=5] all-reduce(%a)").payload_bytes == 20
    assert collective("%a = f32[0,5] parameter(0)\n  %s = f32[0,5] all-reduce(%a)").payload_bytes == 0


def test_names_in_metadata_are_no_collectives():
    line = '%a = f32[4] add(%p, %p), metadata={op_name="x = f32[4] all-gather(y), replica_groups={}"}'
    assert collectives(f"ENTRY %main () -> f32[] {{\n  {line}\n}}\n") == []


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all-reduce", 1400),
        ("all-gather", 5600),
        ("reduce-scatter", 700),
        ("all-to-all", 700),
        ("collective-permute", 800),
        ("collective-broadcast", 800),
    ],
)
def test_bytes_sent_by_the_ring_algorithms(kind: str, sent: int):
    assert Collective(kind, 800, 8).sent_bytes == sent
    assert Collective(kind, 800, 1).sent_bytes == 0
