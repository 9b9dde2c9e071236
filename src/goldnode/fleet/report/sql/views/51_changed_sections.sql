-- Sections of captures whose facts differ between the two times: another digest, or a section that only one of them has.
-- stored
WITH both_times AS (
    SELECT node, place, time
    FROM moments
    UNION ALL
    SELECT node, place, earlier AS time
    FROM moments
),

-- A digest that both times have is there twice. Counting rows of each takes a quarter of the time of comparing the least
-- with the greatest, which are texts (100,000 nodes: 0.6 and 2.1 s of CPU).
single AS (
    SELECT b.place AS place, d.section AS section, d.digest AS digest
    FROM digests AS d
    INNER JOIN both_times AS b ON b.node = d.node AND b.time = d.time
    GROUP BY b.place, d.section, d.digest
    HAVING count(*) = 1
),

differing AS (
    SELECT DISTINCT place, section
    FROM single
)

SELECT m.node AS node, o.section AS section
FROM differing AS o
INNER JOIN moments AS m ON m.place = o.place
