-- Sections of captures whose facts differ between the two times: another digest, or a section that only one of them has.
-- stored
WITH both_times AS (
    SELECT node, place, time
    FROM moments
    UNION ALL
    SELECT node, place, earlier AS time
    FROM moments
),

differing AS (
    SELECT b.place AS place, d.section AS section
    FROM digests AS d
    INNER JOIN both_times AS b ON b.node = d.node AND b.time = d.time
    GROUP BY b.place, d.section
    HAVING count(*) = 1 OR min(d.digest) <> max(d.digest)
)

SELECT m.node AS node, o.section AS section
FROM differing AS o
INNER JOIN moments AS m ON m.place = o.place
