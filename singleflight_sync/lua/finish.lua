-- Ends an open flight without a value: `failed` or `released`. Works when memory is full.
-- prelude: log
--
-- KEYS  1 meta  2 stream
-- ARGV  1 token  2 log id of its claim  3 nonce of this call  4 life of the log ms  5 event
--       6 failed: ms for which newcomers get the failure; released: 1 = counts as a takeover  7 failed: the failure
-- Returns DONE  {ENDED, fields} (the flight has another end)  {LOST}  {GONE}

local flight = open_flight(KEYS[1], KEYS[2], ARGV[1])
if not flight then
  local ended = end_of(KEYS[2], ARGV[1], ARGV[2])
  if ended and ended.nonce == ARGV[3] then
    return DONE
  end
  return fate(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
end

redis.call('DEL', KEYS[1])
redis.call('PEXPIRE', KEYS[2], ARGV[4]) -- writes a command that needs no memory even where the lease had lapsed
if ARGV[5] == 'failed' then
  redis.call('XADD', KEYS[2], '*', 'event', 'failed', 'token', ARGV[1], 'nonce', ARGV[3],
    'keep', flight.forgotten and '0' or ARGV[6], 'error', ARGV[7])
else
  redis.call('XADD', KEYS[2], '*', 'event', 'released', 'token', ARGV[1], 'nonce', ARGV[3], 'counted', ARGV[6])
end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return DONE
