-- Drops what one scope has seen of a model's maps: the coverage of every class, and the records. All else stays.
-- KEYS  the scope's hash, the hash of its records by square
-- Returns in how many classes there was coverage.
local scope, squares = KEYS[1], KEYS[2]
local STATE_SIZE = 33
local state = redis.call('HGET', scope, 's')
if state and #state ~= STATE_SIZE then
  return redis.error_reply('LAYOUT an entry was written by an older version; run: queen migrate')
end
local classes = 0
for _, field in ipairs(redis.call('HKEYS', scope)) do
  if #field == 4 then -- the fields of classes are their labels, <I4, also after a c; all others have one letter
    redis.call('HDEL', scope, field, 'c' .. field)
    classes = classes + 1
  end
end
redis.call('DEL', squares)
return classes
