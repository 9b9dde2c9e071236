-- Known nodes with the time of the stored capture that their latest one has most rows of: its base, or itself.
-- stored
SELECT p.place AS place, c.class AS class, c.node AS node, c.held AS held
FROM peers AS p
INNER JOIN stored_nodes AS c ON c.node = p.node AND c.time = p.time
