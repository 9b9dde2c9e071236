-- Nodes whose status differs between the two times.
SELECT m.class AS class, coalesce(a.status, 'no_verdict') AS old_status, coalesce(b.status, 'no_verdict') AS new_status,
    names(m.node) AS nodes
FROM moments AS m
INNER JOIN captures AS a ON a.node = m.node AND a.time = m.earlier
INNER JOIN captures AS b ON b.node = m.node AND b.time = m.time
WHERE coalesce(a.status, 'no_verdict') <> coalesce(b.status, 'no_verdict')
GROUP BY m.class, coalesce(a.status, 'no_verdict'), coalesce(b.status, 'no_verdict')
