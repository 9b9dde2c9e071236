"""Work on nodes that needs no rollout: plans, records of runs, adoption, the first class and disk updates over ssh."""
