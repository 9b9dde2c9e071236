-- Nodes that have not reported: stale (a capture that is too old) or silent (none at all).
SELECT node, class, cohort, state, seconds
FROM latest
WHERE known = 0
