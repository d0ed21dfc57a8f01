-- Enters a live flight into the index, and drops those whose lease must be over.
-- prelude: log
--
-- KEYS  1 live
-- ARGV  1 tag of the flight's keys  2 lease ms
-- Returns nothing.

local lease, now = tonumber(ARGV[2]), now_ms()
read(KEYS[1], 'ZRANGE', 0, 0)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. whole(now))
redis.call('ZADD', KEYS[1], whole(now + lease), ARGV[1])
if redis.call('PTTL', KEYS[1]) < lease + 10000 then
  redis.call('PEXPIRE', KEYS[1], lease + 10000)
end
