-- Turns one scope of the first layout into one of the second; does nothing to any other. Returns whether it did.
-- Coverage, records, counters, the alarm, budget and name stay. Wealth is dropped: it was won in another kind of test.
-- What was remembered as one entry becomes a picture, and its digest that of an answered input, oldest first.
-- KEYS  the scope's hash, the string of its memory;  ARGV  the memory's capacity
local scope, memory, CAPACITY = KEYS[1], KEYS[2], tonumber(ARGV[1])
local OLD_STATE, OLD_STATE_SIZE, NO_DIGEST = '<BI4dddd', 45, string.rep('\0', 8)
local stored = redis.call('HGET', scope, 's')
if not stored or #stored ~= OLD_STATE_SIZE then return 0 end

local flags, size, queries, _, extra, count = struct.unpack(OLD_STATE, stored)
local occupied, room, digests, sketches = math.min(count, CAPACITY), 1, {}, {}
while room < occupied do room = 2 * room end
if occupied > 0 then
  local old = redis.call('GET', memory) -- the codes of all slots, then digest and sketch of each
  for slot = 0, room - 1 do
    sketches[slot + 1] = string.sub(old, 4 * room + 40 * slot + 9, 4 * room + 40 * slot + 40)
  end
  for i = count - occupied, count - 1 do
    local at = 4 * room + 40 * (i % CAPACITY)
    local digest = string.sub(old, at + 1, at + 8)
    if digest ~= NO_DIGEST then digests[#digests + 1] = digest end
  end
  redis.call('SET', memory, string.sub(old, 1, 4 * room) .. table.concat(digests)
    .. string.rep('\0', 8 * (room - #digests)) .. table.concat(sketches))
end
for i = 1, math.ceil(size / 8) do redis.call('HDEL', scope, 'w' .. i) end
redis.call('HSET', scope, 's', struct.pack('<Bdddd', flags, queries, extra, count, #digests))
return 1
