-- Lets no use of a renewing budget of one scope lie after now; what was used still counts in the present window.
-- KEYS  the scope's hash, the hash of its records by square (not used)
-- Returns how many uses did lie there.
local scope, now, moved = KEYS[1], tonumber(redis.call('TIME')[1]), 0
local all = redis.call('HGETALL', scope)
for i = 1, #all, 2 do
  if all[i] == 'r' or #all[i] == 5 then -- extra answers, and a class: c with its label
    local amount, at = struct.unpack('<dd', all[i + 1])
    if at > now then
      redis.call('HSET', scope, all[i], struct.pack('<dd', amount, now))
      moved = moved + 1
    end
  end
end
return moved
