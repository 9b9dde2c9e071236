-- History of each node in 30 days: captures whose status, boot or class document differs from the one before.
WITH ordered AS (
    SELECT
        c.node AS node,
        c.seconds AS seconds,
        coalesce(c.status, 'no_verdict') AS status,
        coalesce(c.boot_id, '') AS boot_id,
        coalesce(c.class_digest, '') AS class_digest,
        row_number() OVER (PARTITION BY c.node ORDER BY c.seconds) AS place,
        lag(coalesce(c.status, 'no_verdict')) OVER (PARTITION BY c.node ORDER BY c.seconds) AS old_status,
        lag(coalesce(c.boot_id, '')) OVER (PARTITION BY c.node ORDER BY c.seconds) AS old_boot_id,
        lag(coalesce(c.class_digest, '')) OVER (PARTITION BY c.node ORDER BY c.seconds) AS old_class_digest
    FROM captures AS c
    CROSS JOIN settings AS s
    WHERE c.seconds >= s.month_s
)

SELECT
    node,
    seconds,
    status,
    CASE WHEN place > 1 AND boot_id <> old_boot_id THEN 1 ELSE 0 END AS booted,
    CASE WHEN place > 1 AND class_digest <> old_class_digest THEN 1 ELSE 0 END AS class_changed
FROM ordered
WHERE place = 1 OR status <> old_status OR boot_id <> old_boot_id OR class_digest <> old_class_digest
