-- Values that the majority of a class and platform has: at least the share `min_share` of `min_nodes` nodes or more.
-- stored
SELECT d.class AS class, d.platform AS platform, d.key AS key, d.slot AS slot, d.value AS value, d.n AS n, d.total AS total
FROM distribution AS d
CROSS JOIN settings AS s
WHERE d.total >= s.min_nodes AND d.n >= s.min_share * d.total
