-- Number of nodes of each class in each state.
SELECT class, state, max(known) AS known, count(*) AS nodes
FROM latest
GROUP BY class, state
