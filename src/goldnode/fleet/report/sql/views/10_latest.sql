-- Every node with its latest capture. state: the status of its verdict, or no_verdict, stale, silent.
-- silent: a node of the list of expected nodes, or with a canary result, that has no capture.
-- Stale and silent nodes are not known (known = 0): their last values take no part in any comparison.
-- stored
WITH newest AS (
    SELECT node, max(time) AS time
    FROM captures
    GROUP BY node
),

listed_nodes AS (
    SELECT node, class, cohort
    FROM expected
    UNION ALL
    SELECT r.node AS node, max(r.class) AS class, NULL AS cohort
    FROM results AS r
    LEFT JOIN expected AS e ON e.node = r.node
    WHERE e.node IS NULL
    GROUP BY r.node
),

taken AS (
    SELECT
        c.node AS node,
        c.time AS time,
        max(c.seconds) AS seconds,
        max(c.class) AS class,
        max(c.cohort) AS cohort,
        max(c.boot_id) AS boot_id,
        max(c.simulated) AS simulated,
        max(c.status) AS status,
        max(c.class_digest) AS class_digest,
        max(c.lock_digest) AS lock_digest
    FROM captures AS c
    INNER JOIN newest AS n ON n.node = c.node AND n.time = c.time
    GROUP BY c.node, c.time
)

SELECT
    t.node AS node,
    t.class AS class,
    coalesce(e.cohort, t.cohort) AS cohort,
    t.time AS time,
    t.seconds AS seconds,
    t.boot_id AS boot_id,
    t.simulated AS simulated,
    t.class_digest AS class_digest,
    t.lock_digest AS lock_digest,
    CASE WHEN t.seconds < s.fresh_s THEN 'stale' ELSE coalesce(t.status, 'no_verdict') END AS state,
    CASE WHEN t.seconds < s.fresh_s THEN 0 ELSE 1 END AS known
FROM taken AS t
LEFT JOIN expected AS e ON e.node = t.node
CROSS JOIN settings AS s
UNION ALL
SELECT
    e.node AS node,
    e.class AS class,
    e.cohort AS cohort,
    NULL AS time,
    NULL AS seconds,
    NULL AS boot_id,
    NULL AS simulated,
    NULL AS class_digest,
    NULL AS lock_digest,
    'silent' AS state,
    0 AS known
FROM listed_nodes AS e
LEFT JOIN newest AS n ON n.node = e.node
WHERE n.node IS NULL
