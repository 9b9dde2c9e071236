-- Changes since the earlier time: one row for each set of changes of one topic, with all nodes that have it.
-- changes: KEY␟SLOT␟OLD␟NEW; ␀ is no value.
WITH per_node AS (
    SELECT
        d.node AS node,
        m.class AS class,
        d.topic AS topic,
        names(concat(d.key, '␟', d.slot, '␟', coalesce(d.old_value, '␀'), '␟', coalesce(d.new_value, '␀'))) AS changes
    FROM changed_facts AS d
    INNER JOIN moments AS m ON m.node = d.node
    GROUP BY d.node, m.class, d.topic
)

SELECT class, topic, changes, names(node) AS nodes
FROM per_node
GROUP BY class, topic, changes
