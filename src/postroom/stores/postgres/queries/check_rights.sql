-- The privileges of this role and of PUBLIC on the outbox.
SELECT current_user, r.rolsuper, r.rolcreaterole OR r.rolcreatedb OR r.rolbypassrls,
    pg_has_role(c.relowner, 'MEMBER'),
    COALESCE((SELECT string_agg(DISTINCT a.privilege_type, ', ' ORDER BY a.privilege_type)
        FROM aclexplode(c.relacl) AS a WHERE a.grantee = 0), '')
FROM pg_roles AS r, pg_class AS c
WHERE r.rolname = current_user AND c.oid = CAST('postroom_outbox' AS regclass)
