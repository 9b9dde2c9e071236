-- Begins of hardware and driver faults: a finding that the capture before did not have. again: within 7 days.
-- severity: the worst one of its parts.
-- stored
WITH faulty AS (
    SELECT DISTINCT f.node AS node
    FROM findings AS f
    INNER JOIN captures AS c ON c.node = f.node AND c.time = f.time
    CROSS JOIN settings AS s
    WHERE f.outcome = 'mismatch' AND f.domain IN ('hardware', 'driver') AND c.seconds >= s.month_s
),

numbered AS (
    SELECT c.node AS node, c.time AS time, c.seconds AS seconds, row_number() OVER (PARTITION BY c.node ORDER BY c.seconds) AS place
    FROM captures AS c
    INNER JOIN faulty AS y ON y.node = c.node
    CROSS JOIN settings AS s
    WHERE c.seconds >= s.month_s
),

present AS (
    SELECT
        n.node AS node,
        f.id AS id,
        max(CASE WHEN f.severity = 'drain' THEN 'drain' ELSE 'degraded' END) AS severity,
        n.seconds AS seconds,
        n.place AS place
    FROM findings AS f
    INNER JOIN numbered AS n ON n.node = f.node AND n.time = f.time
    WHERE f.outcome = 'mismatch' AND f.domain IN ('hardware', 'driver')
    GROUP BY n.node, f.id, n.seconds, n.place
),

sequence AS (
    SELECT
        node,
        id,
        severity,
        seconds,
        place,
        row_number() OVER (PARTITION BY node, id ORDER BY seconds) AS turn,
        lag(place) OVER (PARTITION BY node, id ORDER BY seconds) AS old_place,
        lag(seconds) OVER (PARTITION BY node, id ORDER BY seconds) AS old_seconds
    FROM present
)

SELECT
    node,
    id,
    severity,
    seconds,
    CASE WHEN turn > 1 AND seconds - old_seconds <= 604800 THEN 1 ELSE 0 END AS again
FROM sequence
WHERE turn = 1 OR old_place <> place - 1
