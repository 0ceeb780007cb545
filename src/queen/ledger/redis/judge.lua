-- Judges the queries of one scope (a client or a group) in order, and charges for them: what `decide.py` and
-- `sentinel/wealth.py` do in Python, with the same sums, products, quotients and comparisons of doubles in the same
-- order.
--
-- KEYS  the scope's hash, the hash of its records by square, the string of its memory of queries, and two strings of
--       evidence, one for each of the two tests used last
-- ARGV  1 settings, 2 id of the test (8 bytes), 3 name, 4 per row <I4dddd: label, x, y, radius, area,
--       5 per row what the sentinel adds: digest (8 bytes), sketch (<8f), code (4), how many codes to search (1), those
--       codes (16 * 4), and the bet (<I4 each): sizes by clock, then total, bet and count of every lane,
--       6 per row a byte: 1 if an alarm has consequences, 2 more if an accused scope answers the row again, as it did
--       before its alarm: then this scope must remember it too, or denies it; 7 the groups whose alarms would, as NAME\0NAME\0...
-- Returns one byte per row (a letter and flags, see redis.py), a byte for each of those groups (whether it is home), for
-- every row that finds no budget left <I4dddd: its number, extra answers used and in all, when all that is spent will
-- have renewed (-1: not all does), the time (0 if nothing renews); and then, for every notice, which it is and where the
-- scope stood.
--
-- The hash has the fields s (counters), w (for every test, the one used last at the end: a byte, its id, its wealth), b
-- (its own budget), p (the same again, and its periods in seconds, <I4I4; only where one renews), h (the groups that are
-- home), a (how often it asked while accused, in digits; none before that), n (its name), r (of extra answers, what was
-- used since they renewed last, and when the last of it was), and for every class with records its label (<I4) with CQS,
-- the radius that its squares were made for, and the number of records; and c with the label, as r, of that class. The byte of a test is 0 or 1 for the string of its evidence, and 2 more for every test that has
-- come and gone since this one was used.
-- Squares of the grid are twice the radius wide and list (number, x, y).
-- The memory has a power of two of slots, `room`: the codes of all pictures, the digests of all answered inputs, the
-- sketches of all pictures. A code names the box that a sketch lies in; what is near has one of the codes to search.
-- Evidence is: the width of counts in bytes, the number of classes used, clocks, purses, the labels of the classes, and
-- the counts of each (see `Winnings`).
local scope, squares, memory = KEYS[1], KEYS[2], KEYS[3]
local call, pack, parse, sub, floor, rep = redis.call, struct.pack, struct.unpack, string.sub, math.floor, string.rep
local WATCH, GROUP, SCORES, CAPACITY, threshold, extra_answers, BAR, AFTER_ALARM, class_period, extra_period =
  parse('<BBBI4ddddI4I4', ARGV[1])
local TEST, POINTS, QUERIES, ENFORCE = ARGV[2], ARGV[4], ARGV[5], ARGV[6]
local STATE, STATE_SIZE = '<Bdddd', 33
local SHAPES, LANES, STAKE_1, STAKE_2 = 3, 5, 0.2, 0.6 -- as in sentinel/bets.py
local MOST = 2 ^ 28 - 1 -- as in sentinel/wealth.py
local OUTLASTED, LOW, HOMES = 16, 0.8, 16 -- as in ledger/state.py, ledger/words.py and ledger/rows.py
local SPENT, DENIED, ALARMED, TRUSTED, REPEATED, CUT_OFF = 4, 8, 16, 32, 64, 128 -- as in ledger/redis/ledger.py
local POINT, HEAD, CODES = 36, 109, 45 -- bytes per point, per query before its bet, and before its codes to search
local NUMBERS = 1 + SCORES + 3 * LANES * SCORES
local ROWS, QUERY = #POINTS / POINT, HEAD + 4 * NUMBERS

-- Read from the scope, in one call, all that this batch is sure to need

local fields, labels = { 's', 'b', 'w', 'h', 'a', 'r', 'p' }, {}
for row = 0, math.min(ROWS, 100) - 1 do
  local label = sub(POINTS, POINT * row + 1, POINT * row + 4)
  if not labels[label] then
    fields[#fields + 1] = label
    labels[label] = #fields
  end
end
local stored_fields = call('HMGET', scope, unpack(fields))
local flags, queries, extra, pictures_before, answered_before = 4 * GROUP, 0, 0, 0, 0
if stored_fields[1] then
  if #stored_fields[1] ~= STATE_SIZE then
    return redis.error_reply('LAYOUT an entry was written by an older version; run: queen migrate')
  end
  flags, queries, extra, pictures_before, answered_before = parse(STATE, stored_fields[1])
end
local alarmed, allowed = flags % 2 == 1, flags % 4 >= 2
local after_alarm = tonumber(stored_fields[5] or 0)
if stored_fields[2] then
  local which, own_threshold, own_extra = parse('<Bdd', stored_fields[2])
  local own_class_period, own_extra_period = 0, 0
  if stored_fields[7] and sub(stored_fields[7], 1, -9) == stored_fields[2] then
    own_class_period, own_extra_period = parse('<I4I4', stored_fields[7], #stored_fields[2] + 1)
  end
  if which % 2 == 1 then threshold, class_period = own_threshold, own_class_period end
  if which >= 2 then extra_answers, extra_period = own_extra, own_extra_period end
end

-- Budgets that renew: the time, when the present windows began (nil: for life), and what was used of the extra answers

local WEEK, MONDAY = 604800, 345600 -- as in allowance.py
local RENEWS, now = class_period > 0 or extra_period > 0, 0
if RENEWS then now = tonumber(redis.call('TIME')[1]) end

local function start_of(period, time) return time - (time - (period == WEEK and MONDAY or 0)) % period end

local class_start = class_period > 0 and start_of(class_period, now) or nil
local extra_start = extra_period > 0 and start_of(extra_period, now) or nil
local extra_usage, is_extra_used = { amount = 0, at = 0 }, false
if stored_fields[6] then extra_usage.amount, extra_usage.at = parse('<dd', stored_fields[6]) end

local function used_since(start, usage) return start > usage.at and 0 or usage.amount end

local function add_usage(usage, amount, start)
  usage.amount, usage.at = used_since(start, usage) + amount, math.max(usage.at, now)
end

local function extra_used() return extra_start and used_since(extra_start, extra_usage) or extra end

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
    if class_start then
      local usage = call('HGET', scope, 'c' .. label)
      class.amount, class.at = 0, 0
      if usage then class.amount, class.at = parse('<dd', usage) end
    end
    classes[label] = class
  end
  return class
end

-- The coverage of a class that counts.
local function covered_of(class) return class_start and used_since(class_start, class) or class.cqs end

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
  return covered_of(class) > threshold and 1 or 2
end

local spent_at -- the last use of a class that this batch has spent

local function record(class, label, x, y, area)
  local side = 2 * class.radius * (1 + 1e-9)
  local square = label .. pack('<i4i4', floor(x / side), floor(y / side))
  listed[square] = (listed[square] or '') .. pack('<I4dd', class.records, x, y)
  class.cqs, class.records = class.cqs + area, class.records + 1
  written[square], changed[label] = true, true
  if class_start then add_usage(class, area, class_start) end
  if RENEWS and covered_of(class) > threshold then spent_at = math.max(spent_at or 0, class.at or 0) end
end

-- The memory of queries: two rings of slots, what is stored in them and what this batch adds

local room = 1
while room < math.min(math.max(pictures_before, answered_before), CAPACITY) do room = 2 * room end
local pictures = { count = pictures_before, occupied = math.min(pictures_before, CAPACITY), added = {} }
local answered = { count = answered_before, occupied = math.min(answered_before, CAPACITY), added = {} }
local code_of, slots_of, times = {}, {}, {} -- by slot: code; by code: slots; by digest: how often this batch added it
local codes, digests

-- The next stored slot, not overwritten since, whose part of a text (`width` bytes per slot) is these bytes.
local function next_slot(ring, text, bytes, width, slot)
  local at = width * slot + 1
  while true do
    at = string.find(text, bytes, at, true)
    if not at then return nil end
    local here = (at - 1) / width
    if here >= ring.occupied then return nil end
    if here == floor(here) and not ring.added[here] then return here end
    at = at + 1
  end
end

local function add(ring, entry)
  local slot = ring.count % CAPACITY
  local replaced = ring.added[slot]
  ring.added[slot], ring.count = entry, ring.count + 1
  return slot, replaced
end

local function is_close(one, other)
  local a, b, c, d, e, f, g, h = parse('<ffffffff', one)
  local i, j, k, l, m, n, o, p = parse('<ffffffff', other)
  a, b, c, d, e, f, g, h = a - i, b - j, c - k, d - l, e - m, f - n, g - o, h - p
  return -1 < a and a < 1 and -1 < b and b < 1 and -1 < c and c < 1 and -1 < d and d < 1
    and -1 < e and e < 1 and -1 < f and f < 1 and -1 < g and g < 1 and -1 < h and h < 1
end

-- Whether an earlier picture is near this sketch.
local function has_near(sketch, search)
  local is_stored = pictures.occupied > 0
  if is_stored and not codes then codes = call('GETRANGE', memory, 0, 4 * room - 1) end
  for i = 1, #search, 4 do
    local code = sub(search, i, i + 3)
    local slot = is_stored and next_slot(pictures, codes, code, 4, 0)
    while slot do
      local at = 12 * room + 32 * slot
      if is_close(call('GETRANGE', memory, at, at + 31), sketch) then return true end
      slot = next_slot(pictures, codes, code, 4, slot + 1)
    end
    for _, new in ipairs(slots_of[code] or {}) do -- or one that this batch has added
      if is_close(pictures.added[new], sketch) then return true end
    end
  end
  return false
end

local function add_picture(sketch, code)
  local slot, slots = add(pictures, sketch), slots_of[code] or {}
  code_of[slot], slots[#slots + 1], slots_of[code] = code, slot, slots
end

-- Whether this very input was answered.
local function was_answered(digest)
  if (times[digest] or 0) > 0 then return true end
  if answered.occupied == 0 then return false end
  digests = digests or call('GETRANGE', memory, 4 * room, 12 * room - 1)
  return next_slot(answered, digests, digest, 8, 0) ~= nil
end

local function add_answered(digest)
  local _, replaced = add(answered, digest)
  if replaced then times[replaced] = times[replaced] - 1 end
  times[digest] = (times[digest] or 0) + 1
end

-- Evidence: read when the first bet is placed

local CLOCKS, FLOATS, BET = 1 + SCORES, '<' .. rep('f', 2 * LANES * SCORES), '<' .. rep('I4', NUMBERS)
local HEADER = '<BI4' .. rep('I6', CLOCKS)
local FRONT = 5 + 6 * CLOCKS + 8 * LANES * SCORES -- bytes before the labels
local text, place -- the evidence as it was stored; which string it is in, 0 or 1, nil: not read yet
local width, used, clocks, purses, wealth = 1, 0, nil, nil, 0
local counts, indices, fresh_labels = {}, {}, {} -- of the classes that this batch uses
local others = {} -- of the tests: the entries of the field w that stay

-- How the counts of a class are stored: power sums, the third lane of a score, need a byte more than counts.
local function counts_format(bytes)
  local one = 'I' .. bytes
  return '<' .. rep(one, CLOCKS) .. rep(one .. one .. 'I' .. (bytes + 1) .. one .. one, SCORES)
end
local function counts_size(bytes) return bytes * (CLOCKS + LANES * SCORES) + SCORES end

local function parse_all(format, from, at)
  local numbers = { parse(format, from, at) }
  numbers[#numbers] = nil -- where parsing ended
  return numbers
end

local function wealth_in(entry) return (parse('<d', entry, 10)) end

-- Forget one of two tests, as `ScopeState` does: the poorer one, unless the other was not used for too long.
local function make_room()
  local older, newer = others[1], others[2]
  local byte = string.byte(older)
  if wealth_in(newer) > wealth_in(older) or floor(byte / 2) == OUTLASTED then
    others = { newer }
  else
    others = { string.char(byte + 2) .. sub(older, 2) }
  end
end

local function read_evidence()
  local entries = stored_fields[3] or ''
  for at = 1, #entries, 17 do
    local entry = sub(entries, at, at + 16)
    if sub(entry, 2, 9) == TEST then place = string.byte(entry) % 2 else others[#others + 1] = entry end
  end
  if place then
    text = call('GET', KEYS[4 + place])
    width, used = parse('<BI4', text)
    clocks, purses = parse_all('<' .. rep('I6', CLOCKS), text, 6), parse_all(FLOATS, text, 6 + 6 * CLOCKS)
  else
    if #others == 2 then make_room() end
    place = #others == 1 and 1 - string.byte(others[1]) % 2 or 0
    clocks, purses = {}, {}
    for i = 1, CLOCKS do clocks[i] = 0 end
    for i = 1, 2 * LANES * SCORES do purses[i] = 0 end
  end
end

-- How many classes there is room for in the string, and how many bytes come before their counts.
local function class_room(bytes) return (#text - FRONT) / (4 + counts_size(bytes)) end
local function counts_start(bytes) return FRONT + 4 * class_room(bytes) end

local function counts_of(label)
  local numbers = counts[label]
  if numbers then return numbers end
  local at = text and FRONT + 1
  while at do
    at = string.find(text, label, at, true)
    local index = at and (at - FRONT - 1) / 4
    if not at or index >= used - #fresh_labels then break end
    if index == floor(index) then
      at = counts_start(width) + counts_size(width) * index + 1
      numbers, indices[label] = parse_all(counts_format(width), text, at), index
      break
    end
    at = at + 1
  end
  if not numbers then
    numbers, indices[label] = {}, used
    for i = 1, CLOCKS + LANES * SCORES do numbers[i] = 0 end
    used, fresh_labels[#fresh_labels + 1] = used + 1, label
  end
  counts[label] = numbers
  return numbers
end

-- Place the bet of a row; true if the sum of a score's purses has reached the bar.
local function place_bet(row, label)
  if not place then read_evidence() end
  local bet, numbers = { parse(BET, QUERIES, QUERY * row + HEAD + 1) }, counts_of(label)
  if numbers[1] < MOST then
    local money = {}
    for clock = 1, CLOCKS do
      if bet[clock] > 0 then
        local time = clocks[clock] + 1
        money[clock] = 0.5 / (time * (time + 1)) + (time == 1 and 0.5 or 0)
        clocks[clock] = time
      end
    end
    local at, lane, purse = CLOCKS, CLOCKS, 0
    for score = 1, SCORES do
      local clock = 1
      for shape = 1, LANES do
        if shape > SHAPES then clock = 1 + score end
        lane = lane + 1
        local fresh = money[clock]
        if fresh then
          local size, total = bet[clock], bet[at + 1]
          local unit = size / total
          local gain = unit * bet[at + 2]
          local expected = math.max(1, unit * (total + numbers[lane]) / (size + numbers[clock]))
          local i, j = purse + 1, purse + 2
          purses[i] = (purses[i] + fresh)
            * ((1 - STAKE_1 + STAKE_1 * gain) / (1 - STAKE_1 + STAKE_1 * expected))
          purses[j] = (purses[j] + fresh)
            * ((1 - STAKE_2 + STAKE_2 * gain) / (1 - STAKE_2 + STAKE_2 * expected))
          numbers[lane] = numbers[lane] + bet[at + 3]
        end
        at, purse = at + 3, purse + 2
      end
    end
    for clock = 1, CLOCKS do
      if money[clock] then numbers[clock] = numbers[clock] + 1 end
    end
    purses = parse_all(FLOATS, pack(FLOATS, unpack(purses)), 1) -- rounded to float32
  end
  local largest = 0
  for first = 1, #purses, 2 * LANES do -- every score is a test of its own
    local total = 0
    for i = first, first + 2 * LANES - 1 do total = total + purses[i] end
    if total > largest then largest = total end
  end
  wealth = largest / #purses
  return largest >= BAR
end

-- The highest wealth over the tests.
local function highest_wealth()
  local highest = wealth
  for _, entry in ipairs(others) do highest = math.max(highest, wealth_in(entry)) end
  return highest
end

-- Notices: what operators should hear of

local notices, denials = {}, {}
local ALARM, BUDGET_LOW, BUDGET_SPENT, CLASS_LOW, CLASS_SPENT = 0, 1, 2, 3, 4 -- places in NOTICES of ledger/words.py

local stored_scope -- all fields, once they are needed: nothing is written before the end
local function all_fields()
  stored_scope = stored_scope or call('HGETALL', scope)
  return stored_scope
end

-- CQS by class.
local function coverage_now()
  local all, coverage = all_fields(), {}
  for i = 1, #all, 2 do
    if #all[i] == 4 then coverage[all[i]] = parse('<d', all[i + 1]) end
  end
  for label, class in pairs(classes) do
    if class.records > 0 then coverage[label] = class.cqs end
  end
  return coverage
end

-- The coverage by class that counts, as it was stored; and the last use of each class, where its budget renews.
local function stored_coverage()
  local all, coverage, last = all_fields(), {}, {}
  for i = 1, #all, 2 do
    if class_start and #all[i] == 5 then
      local usage = {}
      usage.amount, usage.at = parse('<dd', all[i + 1])
      coverage[sub(all[i], 2)], last[sub(all[i], 2)] = used_since(class_start, usage), usage.at
    elseif not class_start and #all[i] == 4 then
      coverage[all[i]] = parse('<d', all[i + 1])
    end
  end
  return coverage, last
end

local function note(what, row, wealth_now)
  local packed = {}
  for label, cqs in pairs(coverage_now()) do packed[#packed + 1] = label .. pack('<d', cqs) end
  notices[#notices + 1] = { pack('<BI4ddd', what, row, queries, wealth_now, extra), table.concat(packed) }
end

-- Note that the extra answers, one more than before, come to an end.
local function note_extra(row)
  local used = extra_used()
  if used == extra_answers then
    note(BUDGET_SPENT, row, 0)
  elseif used >= LOW * extra_answers and LOW * extra_answers > used - 1 then
    note(BUDGET_LOW, row, 0)
  end
end

-- Note that a class, of which so much counted before, comes to an end, unless another class did so first.
local function note_class(row, label, before)
  local covered, low, what = covered_of(classes[label]), LOW * threshold, nil
  if covered > threshold and threshold >= before then
    what = CLASS_SPENT
  elseif covered >= low and low > before then
    what = CLASS_LOW
  else
    return
  end
  local coverage = stored_coverage()
  for other, class in pairs(classes) do coverage[other] = covered_of(class) end
  for other, counts in pairs(coverage) do
    if other ~= label and (counts > threshold or (what == CLASS_LOW and counts >= low)) then return end
  end
  note(what, row, 0)
end

-- Deny a row: when all that is spent here will have renewed, whatever this row lacks. What is said must not depend on it.
local stored_spent_at -- the last use of a class that was spent before this batch; false: there is none
local function deny(row)
  local used, renews = extra_used(), 0
  local function wait_for(period, time)
    renews = (period == 0 or renews < 0) and -1 or math.max(renews, start_of(period, time) + period)
  end
  if RENEWS then
    if used >= extra_answers then wait_for(extra_answers > 0 and extra_period or 0, math.max(now, extra_usage.at)) end
    if stored_spent_at == nil then
      local coverage, last = stored_coverage()
      stored_spent_at = false
      for label, counts in pairs(coverage) do
        if counts > threshold then stored_spent_at = math.max(stored_spent_at or 0, last[label] or 0) end
      end
    end
    if spent_at or stored_spent_at then
      wait_for(class_period, math.max(now, spent_at or 0, stored_spent_at or 0))
    end
  else
    renews = -1
  end
  denials[#denials + 1] = pack('<I4dddd', row, used, extra_answers, renews, now)
end

-- Count a row of an accused scope; returns flags. What was answered before is answered again, and nobody pays for it.
local function judge_accused(row)
  after_alarm = after_alarm + 1
  local in_time = after_alarm <= AFTER_ALARM
  if in_time and was_answered(sub(QUERIES, QUERY * row + 1, QUERY * row + 8)) then return REPEATED end
  return DENIED + ((GROUP == 1 or not in_time) and CUT_OFF or 0)
end

-- Judge a row under the sentinel and charge for it; returns flags.
local function judge_with_bets(row, class, label, x, y, area, letter)
  local flags_of_row, query = string.byte(ENFORCE, row + 1), QUERY * row
  local enforce = flags_of_row % 2 == 1 and not allowed
  if alarmed and enforce then return judge_accused(row) end
  local digest, sketch = sub(QUERIES, query + 1, query + 8), sub(QUERIES, query + 9, query + 40)
  local codes_to_search = string.byte(QUERIES, query + 45)
  local near = has_near(sketch, sub(QUERIES, query + CODES + 1, query + CODES + 4 * codes_to_search))
  if not near then
    add_picture(sketch, sub(QUERIES, query + 41, query + 44))
    if not alarmed and place_bet(row, label) then
      alarmed = true
      note(ALARM, row, highest_wealth())
      if enforce then return judge_accused(row) end
    end
  end
  local same = near and was_answered(digest)
  if flags_of_row >= 2 and not same then return DENIED + CUT_OFF end
  local charge = (letter == 0 or letter == 3) and not same
  local closed = covered_of(class) > threshold or (charge and extra_used() >= extra_answers)
  if closed and not same and not allowed then
    deny(row)
    return SPENT
  end
  if letter == 2 then
    local before = covered_of(class)
    record(class, label, x, y, area)
    if not allowed then note_class(row, label, before) end
  elseif charge then
    extra = extra + 1
    if extra_start then
      add_usage(extra_usage, 1, extra_start)
      is_extra_used = true
    end
    if not allowed then note_extra(row) end
  end
  if not same then add_answered(digest) end
  return 0
end

local verdicts = {}
for row = 0, ROWS - 1 do
  local _, x, y, radius, area = parse('<I4dddd', POINTS, POINT * row + 1)
  local label = sub(POINTS, POINT * row + 1, POINT * row + 4)
  local class = class_of(label)
  local letter, verdict = letter_of(class, label, x, y, radius), covered_of(class) > threshold and SPENT or 0
  queries = queries + 1
  if WATCH == 1 then
    verdict = judge_with_bets(row, class, label, x, y, area, letter)
  elseif letter == 2 then
    record(class, label, x, y, area)
  end
  verdicts[row + 1] = string.char(letter + verdict + (WATCH == 1 and alarmed and ALARMED or 0)
    + (allowed and TRUSTED or 0))
end

-- The first groups of a kind whose alarms would have consequences are home; the alarms of others of that kind have none.

local homes, homes_of_kind, home, is_home = stored_fields[4] or '', {}, {}, {}
local function add_home(group)
  local kind = string.match(group, '^[^:]*')
  local count = homes_of_kind[kind] or 0
  if home[group] or count == HOMES then return false end
  home[group], homes_of_kind[kind] = true, count + 1
  return true
end
for group in string.gmatch(homes, '[^%z]+') do add_home(group) end
for group in string.gmatch(ARGV[7], '[^%z]+') do
  if add_home(group) then homes = homes .. group .. '\0' end
  is_home[#is_home + 1] = home[group] and '\1' or '\0'
end

-- Write what changed

flags = (alarmed and 1 or 0) + (allowed and 2 or 0) + 4 * GROUP
local values = { 's', pack(STATE, flags, queries, extra, pictures.count, answered.count) }
local function set_field(name, value) values[#values + 1], values[#values + 2] = name, value end
if not stored_fields[1] then set_field('n', ARGV[3]) end
if homes ~= (stored_fields[4] or '') then set_field('h', homes) end
if after_alarm > 0 then set_field('a', string.format('%.0f', after_alarm)) end
if place then
  set_field('w', table.concat(others) .. string.char(place) .. TEST .. pack('<d', wealth))
end
for label in pairs(changed) do
  local class = classes[label]
  set_field(label, pack('<ddd', class.cqs, class.radius, class.records))
  if class_start and class.at > 0 then set_field('c' .. label, pack('<dd', class.amount, class.at)) end
end
if is_extra_used then set_field('r', pack('<dd', extra_usage.amount, extra_usage.at)) end
call_many('HSET', scope, values)
local entries = {}
for square in pairs(written) do
  entries[#entries + 1] = square
  entries[#entries + 1] = listed[square]
end
call_many('HSET', squares, entries)

local function has_outgrown(numbers)
  local limit = 256 ^ width
  for i = 1, #numbers do
    if numbers[i] >= limit then
      local is_power = i > CLOCKS and (i - CLOCKS) % LANES == SHAPES
      if not is_power or numbers[i] >= 256 * limit then return true end
    end
  end
  return false
end

-- All of it again, with room for as many classes, and counts as wide, as needed now.
local function rewritten_evidence()
  local before, old_width, parts = used - #fresh_labels, width, {}
  for _, numbers in pairs(counts) do
    while has_outgrown(numbers) do width = width + 1 end
  end
  local format, size = counts_format(width), counts_size(width)
  for label, numbers in pairs(counts) do parts[indices[label] + 1] = pack(format, unpack(numbers)) end
  for index = 0, before - 1 do
    if not parts[index + 1] then
      local at = counts_start(old_width) + counts_size(old_width) * index
      parts[index + 1] = width == old_width and sub(text, at + 1, at + size)
        or pack(format, unpack(parse_all(counts_format(old_width), text, at + 1)))
    end
  end
  local all_labels = (text and sub(text, FRONT + 1, FRONT + 4 * before) or '') .. table.concat(fresh_labels)
  local free = used > 4 and -used % 4 or 0 -- several at once, since each time all is written
  return pack(HEADER, width, used, unpack(clocks)) .. pack(FLOATS, unpack(purses)) .. all_labels
    .. rep('\0', 4 * free) .. table.concat(parts) .. rep('\0', size * free)
end

if place then
  local key, grows = KEYS[4 + place], not text or used > class_room(width)
  for _, numbers in pairs(counts) do grows = grows or has_outgrown(numbers) end
  if grows then
    call('SET', key, rewritten_evidence())
  else
    call('SETRANGE', key, 0, pack(HEADER, width, used, unpack(clocks)) .. pack(FLOATS, unpack(purses)))
    for _, label in ipairs(fresh_labels) do call('SETRANGE', key, FRONT + 4 * indices[label], label) end
    local format, start, size = counts_format(width), counts_start(width), counts_size(width)
    for label, numbers in pairs(counts) do
      call('SETRANGE', key, start + size * indices[label], pack(format, unpack(numbers)))
    end
  end
end

-- All slots of a part of the memory, after it has grown to `roomy` slots.
local function grown(stored, size, roomy, added)
  local parts = {}
  for slot = 0, roomy - 1 do
    parts[slot + 1] = added[slot] or (slot < room and stored and sub(stored, size * slot + 1, size * slot + size))
      or rep('\0', size)
  end
  return table.concat(parts)
end

-- Write the slots that a ring has gained since `before`, `size` bytes each.
local function write_slots(ring, before, added, start, size)
  local i = math.max(before, ring.count - CAPACITY)
  while i < ring.count do -- once, or twice if the slots wrap around
    local first, new = i % CAPACITY, {}
    repeat
      new[#new + 1] = added[i % CAPACITY]
      i = i + 1
    until i == ring.count or i % CAPACITY == 0
    call('SETRANGE', memory, start + size * first, table.concat(new))
  end
end

local roomy, is_new = room, pictures_before == 0
while roomy < math.min(math.max(pictures.count, answered.count), CAPACITY) do roomy = 2 * roomy end
if pictures.count > 0 and (is_new or roomy > room) then
  local old = not is_new and call('GET', memory)
  call('SET', memory, grown(old and sub(old, 1, 4 * room), 4, roomy, code_of)
    .. grown(old and sub(old, 4 * room + 1, 12 * room), 8, roomy, answered.added)
    .. grown(old and sub(old, 12 * room + 1), 32, roomy, pictures.added))
else
  write_slots(pictures, pictures_before, code_of, 0, 4)
  write_slots(answered, answered_before, answered.added, 4 * room, 8)
  write_slots(pictures, pictures_before, pictures.added, 12 * room, 32)
end
return { table.concat(verdicts), table.concat(is_home), table.concat(denials), unpack(notices) }
