"""A worker, called directly; its servers are objects in this process."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import ray

from replicax import context
from replicax.errors import EndOfDataError, ReplicaxError
from replicax.parameter_server.actors.messages import (
    Done,
    InputSource,
    PulledVariable,
    Reply,
    SentValue,
    ServerLost,
    SetUp,
    ShardId,
    UnexpectedBatch,
)
from replicax.parameter_server.actors.parameter_server import ParameterServer
from replicax.parameter_server.actors.worker import SET_UP, THREADS, WATCH, RemoteWorker, VariableCache, Worker
from tests.parameter_server.fakes import make_actor
from tests.parameter_server.programs import COUNT, FOUR, OTHER, SCALAR, W, descent, step, values, worker_program

DATASET, ITERATOR, RESOURCE = 10, 11, 12
ONES = np.ones(4, np.float32)
BATCH = {ITERATOR: [((4,), np.float32)]}
pytestmark = pytest.mark.usefixtures("fake_ray")


@pytest.fixture
def server():
    server = make_actor(ParameterServer, {})
    server.load.remote(descent())
    assert ray.get(server.put.remote(values())) == 1
    return server


def read(server, shard):
    return np.asarray(ray.get(server.get.remote([shard])).values[shard])


def pickled(fn):
    return ray.cloudpickle.dumps(fn)


def worker_of(server, *tasks, index=3):
    worker = Worker(index, server if isinstance(server, list) else [server], {})
    for number, task in enumerate(tasks):
        worker.set_up(number, task)
    return worker


def program(**changes):
    """Loads a program that sends its argument as the gradient, and returns the weights that it has."""
    defaults = {"inputs": [(InputSource("argument", 0), FOUR)]}
    return SetUp("program", (worker_program(lambda v, i: ([v[0]], [i[0]]), **(defaults | changes)),))


def data(dataset_fn, **changes):
    """Loads a program whose gradient is the next batch."""
    load = program(inputs=[(InputSource("batch", ITERATOR), FOUR)], batches=BATCH, **changes)
    return [
        load,
        SetUp("dataset", (DATASET, pickled(dataset_fn)), provides=DATASET),
        SetUp("iterator", (ITERATOR, DATASET), provides=ITERATOR),
    ]


def batches(count=5):
    return [np.full(4, i, np.float32) for i in range(count)]


# Steps.


def test_a_step_pulls_computes_and_pushes(server):
    worker = worker_of(server, program())
    done = worker.run(step(0, ONES))
    assert isinstance(done, Done)
    np.testing.assert_array_equal(done.results[0], ONES)
    np.testing.assert_array_equal(read(server, W), 0.5 * ONES)
    assert (done.versions, done.behind) == ({0: 2}, {0: 0})
    assert done.seconds.keys() == {"input", "pull", "compute", "push"}
    assert (done.bytes_pulled, done.bytes_pushed) == (32, 16)  # The push came back with the next variables.


def test_the_next_step_has_what_came_with_the_last_push(server):
    worker = worker_of(server, program())
    worker.run(step(0, ONES))
    done = worker.run(step(1, ONES))
    np.testing.assert_array_equal(done.results[0], 0.5 * ONES)
    assert done.bytes_pulled == 16
    assert done.behind == {0: 0}


def test_variables_that_are_too_old_are_pulled_anew(server):
    worker = worker_of(server, program())
    worker.run(step(0, ONES))
    ray.get(server.put.remote({W: 7 * ONES}))
    np.testing.assert_array_equal(worker.run(step(1, ONES, at_least=[2])).results[0], 0.5 * ONES)
    ray.get(server.put.remote({W: 7 * ONES}))
    np.testing.assert_array_equal(worker.run(step(2, ONES, at_least=[5])).results[0], 7 * ONES)


def test_an_exact_step_pulls_always_and_takes_nothing_in_advance(server):
    worker, other = worker_of(server, program()), worker_of(server, program())
    first = worker.run(step(0, ONES, exact=True))
    assert first.bytes_pulled == 16
    other.run(step(1, ONES, exact=True))
    done = worker.run(step(2, ONES, exact=True))
    np.testing.assert_array_equal(done.results[0], 0 * ONES)
    assert done.behind == {0: 0}


def test_nothing_is_pulled_that_has_not_changed(server):
    worker = worker_of(server, program(sends={}))
    worker.run(step(0, ONES, exact=True))
    assert worker.run(step(1, ONES, exact=True)).bytes_pulled == 0


def test_a_step_that_was_made_by_another_worker_is_not_applied_again(server):
    first, second = worker_of(server, program()), worker_of(server, program())
    assert first.run(step(5, ONES)).behind == {0: 0}
    done = second.run(step(5, ONES))
    assert isinstance(done, Done)
    assert done.behind == {}
    np.testing.assert_array_equal(read(server, W), 0.5 * ONES)


def test_gradients_are_behind_by_what_others_have_pushed_meanwhile(server):
    slow, fast = worker_of(server, program()), worker_of(server, program())
    slow.run(step(0, ONES))
    for i in range(1, 4):
        fast.run(step(i, ONES))
    assert slow.run(step(4, ONES)).behind == {0: 3}


def test_parts_are_put_together_and_taken_apart():
    servers = [make_actor(ParameterServer, {}) for _ in range(2)]
    for i, server in enumerate(servers):
        server.load.remote(descent())
        ray.get(server.put.remote(values() | {ShardId(0, i): np.full(4, i, np.float32)}))
    pulled = PulledVariable((0, 1), (ShardId(0, 0), ShardId(0, 1)))
    whole = type(FOUR)((8,), np.float32)
    load = program(
        variables=[pulled], variable_shapes=[whole], inputs=[(InputSource("argument", 0), whole)],
        sends={0: (SentValue(0, (0, 4)),), 1: (SentValue(0, (4, 8)),)},
    )  # fmt: skip
    worker = worker_of(servers, load)
    done = worker.run(step(0, np.arange(8, dtype=np.float32), at_least=[0, 0]))
    np.testing.assert_array_equal(done.results[0], [0, 0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(read(servers[0], W), 0 - 0.5 * np.arange(4))
    np.testing.assert_array_equal(read(servers[1], W), 1 - 0.5 * np.arange(4, 8))
    assert done.versions == {0: 2, 1: 2}


def test_what_goes_to_a_server_that_nothing_came_from_is_not_behind(server):
    other = make_actor(ParameterServer, {})
    other.load.remote(descent())
    ray.get(other.put.remote(values()))
    load = program(sends={0: (SentValue(0),), 1: (SentValue(0),)})
    workers = [worker_of([server, other], load) for _ in range(2)]
    done = [workers[i % 2].run(step(i, ONES, exact=True, at_least=[0, 0])) for i in range(4)]
    assert max(behind for each in done for behind in each.behind.values()) == 0


def test_two_steps_overlap(server):
    worker = worker_of(server, program())
    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(worker.run, [step(i, ONES) for i in range(20)]))
    assert all(isinstance(each, Done) for each in done)
    assert read(server, COUNT) == 20
    np.testing.assert_array_equal(read(server, W), ONES - 10)


def test_a_lost_server_is_told_of_and_the_batch_is_kept(server):
    worker = worker_of(server, *data(batches))
    server.actor.kill()
    assert isinstance(worker.run(step(0, exact=True, set_up=3)), ServerLost)
    new = make_actor(ParameterServer, {})
    new.load.remote(descent())
    ray.get(new.put.remote(values()))
    worker.set_up(3, SetUp("servers", ([new], 0)))
    assert isinstance(worker.run(step(0, exact=True, set_up=4)), Done)
    np.testing.assert_array_equal(read(new, W), ONES)  # the gradient of batch 0


# Data.


def test_batches_come_in_order_and_each_worker_knows_its_index(server):
    def dataset():
        for i in range(5):
            yield np.full(4, 10 * context.current().worker_index + i, np.float32)

    inputs = [(InputSource("batch", ITERATOR), FOUR)]
    results = worker_program(lambda v, i: ([i[0]], []), inputs=inputs, batches=BATCH, sends={})
    worker = worker_of(server, SetUp("program", (results,)), *data(dataset)[1:])
    assert [worker.run(step(i, set_up=3)).results[0][0] for i in range(3)] == [30, 31, 32]


def test_several_batches_in_a_step(server):
    inputs = [(InputSource("batch", ITERATOR, turn=turn), FOUR) for turn in (0, 1)]
    load = program(inputs=inputs, batches=BATCH)
    worker = worker_of(server, load, *data(batches)[1:])
    worker.run(step(0, set_up=3))
    np.testing.assert_array_equal(read(server, W), ONES)
    worker.run(step(1, set_up=3))
    np.testing.assert_array_equal(read(server, W), 0 * ONES)  # the gradient of batch 2


def test_a_batch_of_another_shape_is_kept_for_the_next_try(server):
    worker = worker_of(server, *data(lambda: [np.ones(4, np.float32), np.ones(3, np.float32)]))
    assert isinstance(worker.run(step(0, set_up=3)), Done)
    for _ in range(2):
        assert worker.run(step(1, set_up=3)) == UnexpectedBatch(ITERATOR)
    assert worker.structure("batch", ITERATOR, 3)[1] == (((3,), np.float32),)


def test_data_that_end(server):
    worker = worker_of(server, *data(lambda: batches(1)))
    worker.run(step(0, set_up=3))
    for _ in range(2):
        with pytest.raises(EndOfDataError, match="worker 3 has no more batches"):
            worker.run(step(1, set_up=3))


@pytest.mark.parametrize("where", ["in the function", "in the iterator", "in iter()"])
def test_errors_of_a_dataset_are_those_of_the_steps_that_need_it(server, where):
    class Bad:
        def __iter__(self):
            raise OSError("no file")

    def generate():
        raise OSError("no file")
        yield

    def fail():
        raise OSError("no file")

    dataset = {"in the function": fail, "in the iterator": generate, "in iter()": Bad}[where]
    worker = worker_of(server, *data(dataset))
    with pytest.raises(OSError, match="no file"):
        worker.run(step(0, set_up=3))
    if where != "in the iterator":  # Python goes on behind an error in a generator: it has ended.
        with pytest.raises(OSError, match="no file"):
            worker.structure("batch", ITERATOR, 3)


class NoArray:
    pass


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: 3, r"`dataset_fn` returned 3 on worker 3, not batches\. Let it return an iterable"),
        (lambda: None, r"`dataset_fn` returned None on worker 3"),
        (lambda: [NoArray()], r"A batch of the dataset of worker 3: a NoArray is not an array"),
        (lambda: [{"x": np.array(["a"])}], r"worker 3, leaf \['x'\]: values of dtype <U1 cannot be placed on a device"),
    ],
)
def test_data_that_are_none_are_said_in_our_words(server, make, words):
    worker = worker_of(server, *data(make))
    with pytest.raises(ReplicaxError, match=words):
        worker.structure("batch", ITERATOR, 2)


def test_values_of_its_own(server):
    resource = SetUp(
        "resource",
        (RESOURCE, pickled(lambda: {"b": 2 * context.current().worker_index, "a": [1.5]})),
        provides=RESOURCE,
    )
    inputs = [(InputSource("resource", RESOURCE, 1), np.int32(0)), (InputSource("worker"), np.int32(0))]
    load = SetUp("program", (worker_program(lambda v, i: (i, []), inputs=inputs, sends={}),))
    worker = worker_of(server, load, resource)
    assert worker.run(step(0, set_up=2)).results == [6, 3]
    assert worker.resource(RESOURCE, 2) == [1.5, 6]
    treedef, leaves = worker.structure("resource", RESOURCE, 2)
    assert treedef.unflatten([0, 1]) == {"a": [0], "b": 1}
    assert [shape for shape, _ in leaves] == [(), ()]


def test_what_is_dropped_is_gone(server):
    worker = worker_of(server, *data(batches))
    worker.set_up(3, SetUp("drop", (ITERATOR, DATASET)))
    with pytest.raises(KeyError):
        worker.run(step(0, set_up=4))


def test_a_step_waits_for_what_it_relies_on(server):
    worker = worker_of(server)
    load = program()
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(worker.run, step(0, ONES, set_up=2))
        late = threads.submit(worker.set_up, 1, SetUp("drop", ()))
        assert not running.done()
        worker.set_up(0, load)
        assert isinstance(running.result(20), Done)
        late.result(20)


def test_what_a_worker_is_told_may_come_in_any_order(server):
    # Many more than there are threads: one that waited in a thread for an earlier one would be in its way.
    worker = ray.remote(concurrency_groups=THREADS)(RemoteWorker).options(max_concurrency=2).remote(0, [server], {})
    tasks = [program(), *(SetUp("drop", ()) for _ in range(40))]
    order = random.Random(0).sample(range(len(tasks)), len(tasks))
    for number in order:
        worker.set_up.options(concurrency_group=SET_UP).remote(number, tasks[number])
    running = worker.run.remote(step(0, ONES, set_up=len(tasks)))
    assert isinstance(ray.get(running, timeout=20), Done)
    assert ray.get(worker.report.options(concurrency_group=WATCH).remote()).set_up == len(tasks)


def test_steps_that_wait_are_not_in_the_way_of_what_they_wait_for(server):
    worker = ray.remote(concurrency_groups=THREADS)(RemoteWorker).options(max_concurrency=2).remote(0, [server], {})
    running = [worker.run.remote(step(i, ONES, set_up=1)) for i in range(4)]
    worker.set_up.options(concurrency_group=SET_UP).remote(0, program())
    assert all(isinstance(done, Done) for done in ray.get(running, timeout=20))


def test_a_worker_tells_what_it_computes_on(server):
    worker = make_actor(Worker, 0, [server], {})
    node, pid, platform, _ = ray.get(worker.report.remote())
    assert (node, platform) == (str(worker.number), "cpu")
    assert pid > 0


# The variables that a worker has.


def test_the_cache_takes_newer_values_only():
    cache = VariableCache()
    assert cache.version_of(0, [W]) == -1
    for version in (5, 4):
        cache.store(0, Reply(version, {W: version * ONES}))
    cache.store(0, Reply(6, None))
    assert cache.version_of(0, [W]) == 5
    assert cache.newest() == {0: 6}
    found = cache.values(worker_program(lambda v, i: (v, []), sends={}))
    np.testing.assert_array_equal(found[0], 5 * ONES)


def test_several_pieces_are_as_old_as_the_oldest():
    cache = VariableCache()
    cache.store(0, Reply(1, {W: ONES, OTHER: ONES}))
    cache.store(0, Reply(2, {W: 2 * ONES}))
    assert cache.version_of(0, [W]) == 2
    assert cache.version_of(0, [W, OTHER]) == 1
    assert cache.version_of(0, [W, COUNT]) == -1
    assert cache.version_of(1, [W]) == -1


def test_a_step_has_its_variables_even_if_another_steps_push_comes_back_meanwhile(server):
    both = program(
        number=1,
        variables=[PulledVariable((0,), (W,)), PulledVariable((0,), (OTHER,))],
        variable_shapes=[FOUR, SCALAR],
        sends={},
    )
    worker = worker_of(server, program(), both)
    pulled, go_on = threading.Event(), threading.Event()
    pull = worker._pull

    def slow_pull(loaded, *args):
        found = pull(loaded, *args)
        if loaded.program.number == 1:
            pulled.set()
            assert go_on.wait(20)
        return found

    worker._pull = slow_pull
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(worker.run, step(0, ONES, program=1))
        assert pulled.wait(20)
        worker._cache.store(0, Reply(9, {W: ONES}))  # what the push of another function's step brings
        go_on.set()
        assert isinstance(running.result(20), Done)
