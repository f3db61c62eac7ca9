SELECT stream, version, type, schema_version, data, raw FROM onefold.events ORDER BY stream, version
