-- How many nodes of each class and platform have a canary result of 30 days, and how their metrics were judged.
WITH per_node AS (
    SELECT
        class,
        platform,
        simulated,
        node,
        max(CASE WHEN basis = 'floors' AND answer <> 'inconclusive' THEN 1 ELSE 0 END) AS floors,
        max(CASE WHEN basis = 'class' AND answer <> 'inconclusive' THEN 1 ELSE 0 END) AS by_class,
        max(CASE WHEN answer <> 'inconclusive' THEN 1 ELSE 0 END) AS judged,
        max(CASE WHEN answer = 'slow' THEN 1 ELSE 0 END) AS slow
    FROM speed
    GROUP BY class, platform, simulated, node
)

SELECT class, platform, simulated, count(*) AS nodes, sum(floors) AS floors, sum(by_class) AS by_class, sum(1 - judged) AS not_judged,
    sum(slow) AS slow
FROM per_node
GROUP BY class, platform, simulated
