"""Tasks of a Ray cluster work in the folder of the process that starts them."""

from __future__ import annotations

import os

import pytest
from ray_clusters import ray_nodes

from hf_ngpulm.common.cluster import Actors, InProcess, OnRay


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
