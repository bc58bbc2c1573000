INSERT INTO postroom_operation (id, kind, request, state, who, created_at, changed_at, total, fingerprint)
VALUES (:id, :kind, :request, 'running', :who, statement_timestamp(), statement_timestamp(), :total, :fingerprint)
ON CONFLICT (fingerprint) WHERE fingerprint IS NOT NULL DO NOTHING
