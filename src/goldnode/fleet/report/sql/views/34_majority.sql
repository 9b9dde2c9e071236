-- Majority drift: one row for each set of deviations of one topic, with all nodes that have it.
-- changes: KEY␟SLOT␟USUAL␟VALUE; ␀ is no value. n of total nodes have the usual value.
WITH per_node AS (
    SELECT
        node,
        class,
        platform,
        topic,
        names(concat(key, '␟', slot, '␟', usual_value, '␟', coalesce(value, '␀'))) AS changes,
        min(n) AS n,
        max(total) AS total
    FROM deviations
    GROUP BY node, class, platform, topic
)

SELECT class, platform, topic, changes, min(n) AS n, max(total) AS total, names(node) AS nodes
FROM per_node
GROUP BY class, platform, topic, changes
