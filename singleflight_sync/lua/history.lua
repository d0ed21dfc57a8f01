-- Reads the newest entries of a log for people, without their values.
-- prelude: log
--
-- KEYS  1 stream
-- ARGV  1 most entries
-- Returns the server's time in ms, then for each entry, oldest first, JSON of its time in ms and its fields.

local page = redis.pcall('XREVRANGE', KEYS[1], '+', '-', 'COUNT', ARGV[1])
local entries = {whole(now_ms())}
if page.err then
  return entries
end
for i = #page, 1, -1 do
  local fields = fields_of(page[i])
  entries[#entries + 1] = cjson.encode({ms_of(fields.id), fields.event or false, fields.token or false, fields.ownerId or false,
    fields.takeovers or false, fields.continues or false})
end
return entries
