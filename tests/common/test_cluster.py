"""Tasks of a Ray cluster work in the folder of the process that starts them; actors fit into machines."""

from __future__ import annotations

import os

import pytest
from ray_clusters import ray_nodes

from hf_ngpulm.common.cluster import Actors, InProcess, OnRay, placed


@pytest.mark.slow
def test_relative_paths_mean_the_same_files_on_a_cluster(tmp_path, monkeypatch):
    def sizes(paths):
        return [os.path.getsize(path) for path in paths]

    (tmp_path / "a.txt").write_text("abc")
    with ray_nodes(2):
        monkeypatch.chdir(tmp_path)
        for cluster in (InProcess(), OnRay()):
            (one,) = cluster.submit(sizes, ["a.txt"], returns=1)
            assert cluster.get(one) == 3
            assert cluster.get(cluster.submit(sizes, ["a.txt", "a.txt"])) == [3, 3]
            assert list(cluster.each(sizes, [["a.txt"]], Actors())) == [[3]]
        assert len(cluster._remote) == 1


def test_actors_fit_into_machines():
    half = Actors(num_gpus=0.5)
    for actors, cpus, gpus, expected in (
        (Actors(), [16, 2], [], (5, 0, 3)),
        (Actors(), [0, 2, 2], [], (2, 0, 2)),
        (Actors(1), [2, 2], [], (1, 0, 2)),
        (Actors(3), [3, 3], [], (3, 0, 1)),
        (Actors(9), [2], [], (9, 0, 1)),
        (Actors(), [8, 8], [1, 3], (4, 1, 1)),
        (half, [8, 8], [1, 3], (8, 0.5, 1)),
        (Actors(2, 2), [8, 8], [1, 3], (2, 2, 1)),
        (Actors(num_gpus=0), [8, 8], [1, 3], (4, 0, 4)),
    ):
        assert placed(actors, cpus, gpus) == expected
    for cpus, gpus, most in (([8, 8], [1, 1], 1), ([8], [], 0)):
        with pytest.raises(ValueError, match=f"should get 2 GPUs, and no machine has more than {most}"):
            placed(Actors(num_gpus=2), cpus, gpus)
