-- Declared drift and failed checks: findings of the latest verdict of known nodes, one row for each set of one topic.
-- changes: ID␟SUBJECT␟EXPECTED␟GOT␟SEVERITY␟DOMAIN. outcome: mismatch or could_not_read.
WITH found AS (
    SELECT
        f.node AS node,
        l.class AS class,
        k.topic AS topic,
        f.outcome AS outcome,
        concat(
            f.id, '␟', CASE WHEN k.loose = 1 THEN '' ELSE coalesce(f.subject, '') END, '␟', coalesce(f.expected, '␀'), '␟',
            coalesce(f.got, '␀'), '␟', coalesce(f.severity, ''), '␟', coalesce(f.domain, '')
        ) AS change
    FROM findings AS f
    INNER JOIN latest AS l ON l.node = f.node AND l.time = f.time
    INNER JOIN finding_topics AS k ON k.id = f.id
    WHERE l.known = 1 AND f.outcome IN ('mismatch', 'could_not_read')
),

per_node AS (
    SELECT node, class, topic, outcome, names(change) AS changes
    FROM found
    GROUP BY node, class, topic, outcome
)

SELECT class, topic, outcome, changes, names(node) AS nodes
FROM per_node
GROUP BY class, topic, outcome, changes
