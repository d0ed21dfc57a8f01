-- Renews the lease of an open flight; where the lease lapsed and nobody came, puts the board back, mark included.
-- prelude: log board
--
-- KEYS  1 meta  2 stream
-- ARGV  1 token  2 log id of its claim  3 lease ms  4 life of the log ms  5 key
-- Returns {DONE, forgotten 0 or 1}  {ENDED, fields}  {LOST} (somebody else claimed)  {GONE} (meta and log were lost)

local lease = tonumber(ARGV[3])
local flight = open_flight(KEYS[1], KEYS[2], ARGV[1])
if not flight then
  return fate(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
if flight.live then
  local now = now_ms()
  redis.call('PEXPIRE', KEYS[1], lease)
  redis.call('HSET', KEYS[1], 'heartbeatAt', whole(now), 'expireAt', whole(now + lease))
else
  post(KEYS[1], flight, lease, ARGV[5])
end
return {DONE, flight.forgotten and 1 or 0}
