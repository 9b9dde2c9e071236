"""The acting half of rollouts: one controller per rollout reads, asks `goldnode.fleet.rollout.plan`, writes and acts.

`controller` is the loop and `assembly` builds its parts. `push` applies over ssh, and `channel`
with `follow` are for nodes that apply by themselves.
"""
