import numpy as np
import pytest

from replicax.tensorflow.proof.recording import Finished, Recorder, Recording, Tensor


def test_a_sketch_knows_the_distance_of_two_tensors():
    rng = np.random.default_rng(0)
    value = rng.normal(size=(40, 30))
    for scale in (1e-6, 1e-2, 1.0):
        change = scale * rng.normal(size=value.shape)
        distance = Tensor.of("a", value).distance(Tensor.of("b", value + change))
        assert distance == pytest.approx(np.linalg.norm(change), rel=0.9)
    assert Tensor.of("a", value).distance(Tensor.of("b", value.copy())) == 0.0


def test_objectives_of_replicas_are_summed_step_by_step():
    recorder = Recorder(steps=2, stop=False)
    site = recorder.site(lambda: [])
    for step in (1.0, 10.0, 100.0):
        for replica in (1, 0):  # in whatever order the replicas come
            recorder.objective(site, replica, step + replica)
    assert recorder.recording().objectives == (3.0, 21.0)


def test_variables_are_kept_after_steps_and_the_script_ends_when_all_are_made(tmp_path):
    value = np.zeros(3)
    recorder = Recorder(steps=3, stop=True)
    site = recorder.site(lambda: [("w", value)])
    recorder.keep_initial(site)

    def step(number):
        value[:] = number
        recorder.objective(site, 0, float(number))

    around = recorder.around(step)
    around(1), around(2)
    with pytest.raises(Finished):
        around(3)
    recording = recorder.recording()
    assert [each.step for each in recording.snapshots] == [1, 2, 3]
    assert recording.snapshots[2].tensors[0].norm == pytest.approx(3 * np.sqrt(3))
    assert recording.initial[0].norm == 0.0
    recording.write(tmp_path / "recording.json")
    assert Recording.read(tmp_path / "recording.json") == recording


def test_a_call_inside_of_another_one_is_no_boundary():
    recorder = Recorder(steps=1, stop=True)
    site = recorder.site(lambda: [])
    inner = recorder.around(lambda: recorder.objective(site, 0, 1.0))
    outer = recorder.around(lambda: (inner(), inner())[0])
    with pytest.raises(Finished):
        outer()
    assert recorder.made == 2
