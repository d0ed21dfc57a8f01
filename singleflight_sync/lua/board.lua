-- Prelude: how a flight is written down. Needs log.lua.

local MARGIN_MS = 10000

-- The next fencing token: above the last, above `floor`, and never behind the server's clock, so that neither lost data nor a
-- promoted replica makes it go back.
local function next_token(seq, floor)
  local last = token_of(read(seq, 'GET') or '') or 0
  local token = whole(math.max(last + 1, floor + 1, now_us()))
  redis.call('SET', seq, token)
  return token
end

-- Puts the flight (fields of its `claimed` entry) on the notice board for one lease.
local function post(meta, flight, lease, key)
  local now = now_ms()
  redis.call('DEL', meta)
  redis.call('HSET', meta, 'v', '1', 'status', 'RUNNING', 'key', key, 'ownerToken', flight.token, 'ownerId', flight.ownerId,
    'nonce', flight.nonce, 'startedAt', whole(ms_of(flight.id)), 'heartbeatAt', whole(now), 'expireAt', whole(now + lease),
    'leaseMs', whole(lease), 'lifeMs', flight.life, 'followers', flight.followers or '0', 'takeovers', flight.takeovers, 'logId', flight.id)
  if flight.forgotten then
    redis.call('HSET', meta, 'forgotten', '1')
  end
  if flight.continues then
    redis.call('HSET', meta, 'continues', flight.continues)
  end
  redis.call('PEXPIRE', meta, lease)
end

-- Writes `claimed` into the log, trimmed of what nobody can still be reading, and posts the flight.
local function open(meta, stream, flight, lease, key)
  local entry = {'event', 'claimed', 'token', flight.token, 'lease', whole(lease), 'takeovers', flight.takeovers,
    'ownerId', flight.ownerId, 'nonce', flight.nonce, 'life', flight.life, 'recent', flight.recent}
  if flight.continues then
    entry[#entry + 1] = 'continues'
    entry[#entry + 1] = flight.continues
    flight.forgotten = true
  end
  local oldest = whole(math.max(0, now_ms() - tonumber(flight.life)))
  flight.id = redis.call('XADD', stream, 'MINID', oldest, '*', unpack(entry))
  redis.call('PEXPIRE', stream, flight.life)
  post(meta, flight, lease, key)
  return {OWNER, flight.token, flight.id, tonumber(flight.takeovers)}
end
