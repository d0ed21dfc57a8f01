-- Publishes the value of an open flight: the result for those who come later, the end in the log for those who wait.
-- Refused whole where memory is full, since its first write needs some.
-- prelude: log
--
-- KEYS  1 meta  2 result  3 stream
-- ARGV  1 token  2 log id of its claim  3 nonce of this publication  4 encoded value  5 ttl ms, 0 = not stored, -1 = without end
--       6 life of the log ms  7 "1" = the stored value carries no token, and gives way to what was written meanwhile
-- Returns DONE  {ENDED, fields} (the flight has another end)  {LOST}  {GONE} (meta and log were lost; nothing was written)

local RIDES_BYTES, RIDES_MS = 16384, 10000
local value, ttl, bare = ARGV[4], tonumber(ARGV[5]), ARGV[7] == '1'

local flight = open_flight(KEYS[1], KEYS[3], ARGV[1])
if not flight then
  local ended = end_of(KEYS[3], ARGV[1], ARGV[2])
  if ended and ended.nonce == ARGV[3] then
    return DONE
  end
  return fate(KEYS[1], KEYS[3], ARGV[1], ARGV[2])
end

local stored = ttl ~= 0 and not flight.forgotten
if stored and bare then
  if ttl > 0 then
    redis.call('SET', KEYS[2], value, 'NX', 'PX', ARGV[5])
  else
    redis.call('SET', KEYS[2], value, 'NX')
  end
elseif stored then
  redis.call('SET', KEYS[2], ARGV[1] .. ':' .. value, 'PX', ARGV[5])
end
-- The value rides in the entry: one wake-up, no second round trip. A large one is fetched, if it stays long enough to be found.
if stored and not bare and #value > RIDES_BYTES and ttl >= RIDES_MS then
  redis.call('XADD', KEYS[3], '*', 'event', 'succeeded', 'token', ARGV[1], 'nonce', ARGV[3])
else
  redis.call('XADD', KEYS[3], '*', 'event', 'succeeded', 'token', ARGV[1], 'nonce', ARGV[3], 'value', value)
end
redis.call('PEXPIRE', KEYS[3], ARGV[6])
redis.call('DEL', KEYS[1])
return DONE
