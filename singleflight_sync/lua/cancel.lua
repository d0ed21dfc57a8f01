-- Ends the open flight of a key, lapsed or not, whoever owns it. A claim that waits for its number (INIT) is not one.
-- prelude: log
--
-- KEYS  1 meta  2 stream
-- ARGV  1 token of the flight that is meant, '' = whichever  2 nonce of this call
-- Returns the token of the flight that it ended, or nil.

local done = find(KEYS[2], '0-0', function(fields)
  return fields.event == 'cancelled' and fields.nonce == ARGV[2]
end)
if done then
  return done.token
end

local board = read(KEYS[1], 'HMGET', 'ownerToken', 'lifeMs', 'status')
local token, life = board[1], board[2]
if not token and not board[3] then
  local last = last_flight(KEYS[2])
  if last and not last.ended then
    token, life = last.token, last.life
  end
end
if not token or (ARGV[1] ~= '' and ARGV[1] ~= token) then
  return nil
end

life = count_of(life) > 0 and life or '20000' -- of a board that was planted
redis.call('DEL', KEYS[1])
redis.call('PEXPIRE', KEYS[2], life)
redis.call('XADD', KEYS[2], '*', 'event', 'cancelled', 'token', token, 'nonce', ARGV[2])
redis.call('PEXPIRE', KEYS[2], life)
return token
