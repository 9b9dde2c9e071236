-- Jobs of the newest canary result of each node that did not pass, although the node has what they need.
WITH newest_results AS (
    SELECT node, result, job, state, why, class, simulated,
        row_number() OVER (PARTITION BY node, job ORDER BY seconds DESC, result DESC) AS age
    FROM results
)

SELECT r.class AS class, r.job AS job, r.state AS state, r.why AS why, max(r.simulated) AS simulated, names(r.node) AS nodes
FROM newest_results AS r
INNER JOIN latest AS l ON l.node = r.node
WHERE r.age = 1 AND r.state IN ('failed', 'could_not_check')
GROUP BY r.class, r.job, r.state, r.why
