-- Sections of captures whose facts differ between the two times.
-- stored
WITH both_times AS (
    SELECT d.node AS node, d.section AS section, d.digest AS digest, 1 AS is_new
    FROM digests AS d
    INNER JOIN moments AS m ON m.node = d.node AND m.time = d.time
    UNION ALL
    SELECT d.node AS node, d.section AS section, d.digest AS digest, 0 AS is_new
    FROM digests AS d
    INNER JOIN moments AS m ON m.node = d.node AND m.earlier = d.time
),

paired AS (
    SELECT
        node,
        section,
        max(CASE WHEN is_new = 1 THEN digest END) AS new_digest,
        max(CASE WHEN is_new = 0 THEN digest END) AS old_digest
    FROM both_times
    GROUP BY node, section
)

SELECT node, section
FROM paired
WHERE coalesce(new_digest, '') <> coalesce(old_digest, '')
