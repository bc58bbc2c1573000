INSERT INTO postroom_operation (id, kind, request, state, who, created_at, changed_at, total, fingerprint)
VALUES (:id, :kind, :request, 'running', :who, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), :total, :fingerprint)
ON DUPLICATE KEY UPDATE id = postroom_operation.id
