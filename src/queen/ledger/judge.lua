-- Judges the queries of one scope (a client or a group) in order, and charges for them: what `decide.py` does in Python
-- (`_judge_coverage`, and with bets `_judge_in_scope`), with the same sums, products and comparisons of doubles in the
-- same order.
--
-- KEYS  the scope's hash, the hash of its records by square, the string of its memory of queries
-- ARGV  1 settings, 2 number of the test (8 bytes), 3 name,
--       4 per row <I4dddd: label, x, y, radius, area; 5 per row what the sentinel adds: digest (8 bytes), sketch (<8f),
--       code (4), whether it bets (1), how many codes to search (1), those codes (16 * 4), factors (<d each)
-- Returns one byte per row (a letter and flags, see redis.py) and then, for every alarm, where the scope stood.
--
-- The hash has the fields s (counters), w1, w2, ... (wealth, eight doubles each: short values take less room), b (its
-- own budget), n (its name), and for every class with records its label (<I4) with CQS, the radius that its squares
-- were made for, and the number of records. Squares of the grid are twice the radius wide and list (number, x, y).
-- The memory has a power of two of slots, `room`: first the codes of all, then the digest and sketch of each.
-- A code names the box that a sketch lies in; whatever is near has one of the codes to search.
local scope, squares, memory = KEYS[1], KEYS[2], KEYS[3]
local call, pack, parse, sub, floor = redis.call, struct.pack, struct.unpack, string.sub, math.floor
local WATCH, FORM, ENFORCE, GROUP, SIZE, CAPACITY, threshold, extra_answers, BAR = parse('<BBBBI4I4ddd', ARGV[1])
local POINTS, QUERIES = ARGV[4], ARGV[5]
local STATE, PIECE, NO_DIGEST = '<BI4dddd', 8, '\0\0\0\0\0\0\0\0'
local POINT, HEAD, CODES = 36, 110, 46 -- bytes per point, per query before its factors, and before its codes to search
local ROWS, QUERY = #POINTS / POINT, HEAD + 8 * SIZE

-- Read from the scope, in one call, all that this batch is sure to need

local fields, labels = { 's', 'b' }, {}
for i = 1, math.ceil(SIZE / PIECE) do fields[i + 2] = 'w' .. i end
for row = 0, math.min(ROWS, 100) - 1 do
  local label = sub(POINTS, POINT * row + 1, POINT * row + 4)
  if not labels[label] then
    fields[#fields + 1] = label
    labels[label] = #fields
  end
end
local stored_fields = call('HMGET', scope, unpack(fields))
local flags, size, queries, bets, extra, count, test = 4 * GROUP, 0, 0, 0, 0, 0, NO_DIGEST
if stored_fields[1] then
  flags, size, queries, bets, extra, count = parse(STATE, stored_fields[1])
  test = sub(stored_fields[1], -8)
end
local alarmed, allowed, old_size, before = flags % 2 == 1, flags % 4 >= 2, size, count
if stored_fields[2] then
  local which, own_threshold, own_extra = parse('<Bdd', stored_fields[2])
  if which % 2 == 1 then threshold = own_threshold end
  if which >= 2 then extra_answers = own_extra end
end

-- redis.call takes a few thousand arguments at most
local function call_many(command, key, values)
  for i = 1, #values, 1000 do call(command, key, unpack(values, i, math.min(i + 999, #values))) end
end

-- Coverage: classes, and the squares read so far

local classes, changed, listed, written = {}, {}, {}, {}

local function class_of(label)
  local class = classes[label]
  if not class then
    local stored = labels[label] and stored_fields[labels[label]]
    if not labels[label] then stored = call('HGET', scope, label) end
    local cqs, radius, records = 0, 0, 0
    if stored then cqs, radius, records = parse('<ddd', stored) end
    class = { cqs = cqs, radius = radius, records = records }
    classes[label] = class
  end
  return class
end

-- Arrange the records of a class for another radius.
local function regrid(label, side)
  local all, gone, made, values = call('HGETALL', squares), {}, {}, {}
  for i = 1, #all, 2 do
    if sub(all[i], 1, 4) == label then
      gone[#gone + 1] = all[i]
      for at = 1, #all[i + 1], 20 do
        local _, x, y = parse('<I4dd', all[i + 1], at)
        local square = label .. pack('<i4i4', floor(x / side), floor(y / side))
        made[square] = (made[square] or '') .. sub(all[i + 1], at, at + 19)
      end
    end
  end
  for square, entries in pairs(made) do
    values[#values + 1] = square
    values[#values + 1] = entries
  end
  call_many('HDEL', squares, gone)
  call_many('HSET', squares, values)
end

-- A, B, C, D as 0, 1, 2, 3
local function letter_of(class, label, x, y, radius)
  if not (x * x + y * y < 1) then return 0 end
  local side, rho_squared, missing, near = 2 * radius * (1 + 1e-9), radius * radius, {}, {}
  if class.radius ~= radius then
    class.radius = radius
    if class.records > 0 then
      regrid(label, side)
      changed[label] = true
    end
  end
  if class.records > 0 then
    for column = floor((x - radius) / side), floor((x + radius) / side) do
      for line = floor((y - radius) / side), floor((y + radius) / side) do
        local square = label .. pack('<i4i4', column, line)
        near[#near + 1] = square
        if not listed[square] then missing[#missing + 1] = square end
      end
    end
  end
  if #missing > 0 then
    local entries = call('HMGET', squares, unpack(missing))
    for i = 1, #missing do listed[missing[i]] = entries[i] or '' end
  end
  for i = 1, #near do
    local entries = listed[near[i]]
    for at = 5, #entries, 20 do
      local rx, ry = parse('<dd', entries, at)
      local dx, dy = x - rx, y - ry
      if dx * dx + dy * dy < rho_squared then return 3 end
    end
  end
  return class.cqs > threshold and 1 or 2
end

local function record(class, label, x, y, area)
  local side = 2 * class.radius * (1 + 1e-9)
  local square = label .. pack('<i4i4', floor(x / side), floor(y / side))
  listed[square] = (listed[square] or '') .. pack('<I4dd', class.records, x, y)
  class.cqs, class.records = class.cqs + area, class.records + 1
  written[square], changed[label] = true, true
end

-- The memory of queries: what is stored, and what this batch adds

local occupied, room, codes = math.min(count, CAPACITY), 1, nil
while room < occupied do room = 2 * room end
local added, slots_of, times = {}, {}, {} -- by slot: digest, sketch and code; by code: slots; by digest: how often

-- The next stored slot, not overwritten since, whose part of a text (`width` bytes per slot) begins with these bytes.
local function next_slot(text, bytes, width, slot)
  local at = width * slot + 1
  while true do
    at = string.find(text, bytes, at, true)
    if not at then return nil end
    local here = (at - 1) / width
    if here >= occupied then return nil end
    if here == floor(here) and not added[here] then return here end
    at = at + 1
  end
end

local function is_close(one, other)
  local a, b, c, d, e, f, g, h = parse('<ffffffff', one, 9)
  local i, j, k, l, m, n, o, p = parse('<ffffffff', other, 9)
  a, b, c, d, e, f, g, h = a - i, b - j, c - k, d - l, e - m, f - n, g - o, h - p
  return -1 < a and a < 1 and -1 < b and b < 1 and -1 < c and c < 1 and -1 < d and d < 1
    and -1 < e and e < 1 and -1 < f and f < 1 and -1 < g and g < 1 and -1 < h and h < 1
end

-- The digest and sketch of an earlier query that is near this one, if there is one.
local function find_near(entry, search)
  if occupied > 0 and not codes then codes = call('GETRANGE', memory, 0, 4 * room - 1) end
  for i = 1, #search, 4 do
    local code = sub(search, i, i + 3)
    local slot = occupied > 0 and next_slot(codes, code, 4, 0)
    while slot do
      local at = 4 * room + 40 * slot
      local other = call('GETRANGE', memory, at, at + 39)
      if is_close(other, entry) then return other end
      slot = next_slot(codes, code, 4, slot + 1)
    end
    for _, new in ipairs(slots_of[code] or {}) do -- or one that this batch has added
      if is_close(added[new][1], entry) then return added[new][1] end
    end
  end
end

-- Whether this very input got an answer; `near` is an earlier query near it.
local function is_same(digest, near)
  if digest == NO_DIGEST then return false end
  if (times[digest] or 0) > 0 or sub(near, 1, 8) == digest then return true end
  return occupied > 0 and next_slot(call('GETRANGE', memory, 4 * room, -1), digest, 40, 0) ~= nil
end

local function remember(entry, code)
  local slot = count % CAPACITY
  if added[slot] then
    local old = sub(added[slot][1], 1, 8)
    times[old] = times[old] - 1
  end
  local digest, slots = sub(entry, 1, 8), slots_of[code] or {}
  added[slot], slots[#slots + 1], slots_of[code] = { entry, code }, slot, slots
  times[digest], count = (times[digest] or 0) + 1, count + 1
end

-- Evidence

local wealth, alarms = nil, {}

-- Place a bet; true if the sum of wealth has reached the bar.
local function place_bet(query)
  if size == 0 or test ~= ARGV[2] then -- the first bet, or the guard tests something else now
    test, bets, size, wealth = ARGV[2], 0, SIZE, {}
    for i = 1, SIZE do wealth[i] = 0 end
  elseif not wealth then
    wealth = { parse('<' .. string.rep('d', SIZE), table.concat(stored_fields, '', 3, math.ceil(SIZE / PIECE) + 2)) }
  end
  local factors = { parse('<' .. string.rep('d', SIZE), QUERIES, query + HEAD + 1) }
  bets = bets + 1
  local fresh, total = bets == 1 and 1 or 0, 0
  if FORM == 0 then fresh = 0.5 / (bets * (bets + 1)) + (bets == 1 and 0.5 or 0) end
  for i = 1, SIZE do
    local stake = FORM == 2 and math.max(wealth[i], 1) or wealth[i] + fresh
    wealth[i] = stake * factors[i]
    total = total + stake * factors[i]
  end
  return total >= BAR
end

local function wealth_packed(first, last)
  return pack('<' .. string.rep('d', last - first + 1), unpack(wealth, first, last))
end

local function note_alarm(row)
  local all, coverage = call('HGETALL', scope), {}
  for i = 1, #all, 2 do
    if #all[i] == 4 and not classes[all[i]] then coverage[#coverage + 1] = all[i] .. sub(all[i + 1], 1, 8) end
  end
  for label, class in pairs(classes) do
    if class.records > 0 then coverage[#coverage + 1] = label .. pack('<d', class.cqs) end
  end
  alarms[#alarms + 1] = { pack('<I4d', row, queries), wealth_packed(1, SIZE), table.concat(coverage) }
end

-- Judge a row under the sentinel and charge for it: whether it is spent, whether it is accused.
local function judge_with_bets(row, class, label, x, y, area, letter)
  local enforce, query = ENFORCE == 1 and not allowed, QUERY * row
  if alarmed and enforce then return false, true end
  local entry, code = sub(QUERIES, query + 1, query + 40), sub(QUERIES, query + 41, query + 44)
  local has_bet, codes_to_search = string.byte(QUERIES, query + 45, query + 46)
  local near = find_near(entry, sub(QUERIES, query + CODES + 1, query + CODES + 4 * codes_to_search))
  local same, accused = near and is_same(sub(entry, 1, 8), near), false
  if not near and not alarmed and has_bet == 1 and place_bet(query) then
    alarmed, accused = true, enforce
    note_alarm(row)
  end
  local charge = (letter == 0 or letter == 3) and not same
  local closed = class.cqs > threshold or (charge and extra >= extra_answers)
  local spent = closed and not same and not allowed
  if spent or accused then -- it places no second bet, but is not free either: it was never answered
    if not near then remember(NO_DIGEST .. sub(entry, 9), code) end
    return spent and not accused, accused
  end
  if letter == 2 then record(class, label, x, y, area) end
  if charge then extra = extra + 1 end
  if not same then remember(entry, code) end
  return false, false
end

local verdicts = {}
for row = 0, ROWS - 1 do
  local _, x, y, radius, area = parse('<I4dddd', POINTS, POINT * row + 1)
  local label = sub(POINTS, POINT * row + 1, POINT * row + 4)
  local class = class_of(label)
  local letter, spent, accused = letter_of(class, label, x, y, radius), class.cqs > threshold, false
  queries = queries + 1
  if WATCH == 1 then
    spent, accused = judge_with_bets(row, class, label, x, y, area, letter)
  elseif letter == 2 then
    record(class, label, x, y, area)
  end
  verdicts[row + 1] = string.char(letter + (spent and 4 or 0) + (accused and 8 or 0)
    + (WATCH == 1 and alarmed and 16 or 0) + (allowed and 32 or 0))
end

-- Write what changed

flags = (alarmed and 1 or 0) + (allowed and 2 or 0) + 4 * GROUP
local values = { 's', pack(STATE, flags, size, queries, bets, extra, count) .. test }
if not stored_fields[1] then values[3], values[4] = 'n', ARGV[3] end
if wealth then
  for i = 1, math.ceil(SIZE / PIECE) do
    values[#values + 1] = 'w' .. i
    values[#values + 1] = wealth_packed(PIECE * i - PIECE + 1, math.min(PIECE * i, SIZE))
  end
  for i = math.ceil(SIZE / PIECE) + 1, math.ceil(old_size / PIECE) do call('HDEL', scope, 'w' .. i) end
end
for label in pairs(changed) do
  local class = classes[label]
  values[#values + 1] = label
  values[#values + 1] = pack('<ddd', class.cqs, class.radius, class.records)
end
call_many('HSET', scope, values)
local entries = {}
for square in pairs(written) do
  entries[#entries + 1] = square
  entries[#entries + 1] = listed[square]
end
call_many('HSET', squares, entries)

local roomy, i = room, math.max(before, count - CAPACITY)
while roomy < math.min(count, CAPACITY) do roomy = 2 * roomy end
if count > 0 and before == 0 then
  call('SET', memory, string.rep('\0', 44 * roomy))
elseif roomy > room then
  local old, more = call('GET', memory), roomy - room
  call('SET', memory, sub(old, 1, 4 * room) .. string.rep('\0', 4 * more) .. sub(old, 4 * room + 1)
    .. string.rep('\0', 40 * more))
end
while i < count do -- once, or twice if the slots wrap around
  local first, new_codes, new_entries = i % CAPACITY, {}, {}
  repeat
    local new = added[i % CAPACITY]
    new_entries[#new_entries + 1], new_codes[#new_codes + 1] = new[1], new[2]
    i = i + 1
  until i == count or i % CAPACITY == 0
  call('SETRANGE', memory, 4 * first, table.concat(new_codes))
  call('SETRANGE', memory, 4 * roomy + 40 * first, table.concat(new_entries))
end
return { table.concat(verdicts), unpack(alarms) }
