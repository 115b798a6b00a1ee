-- Picks the replica for a request with a key (docs/split/affinity.md). HAProxy loads it once per thread.
--
-- The header holds the key, 16 hexadecimal digits, and how far above the mean a replica's requests may lie, in square
-- roots of the mean. A key has its replicas in an order of its own (rendezvous hashing): the same on every node, and a
-- replica added or gone moves only the keys that it gets or had. The first one with room is named in the transaction's
-- variable `affinity`, for `use-server`. Nothing is named without a usable header, or if no replica has room: then the
-- backend's own algorithm decides, as it does where the named replica takes no connection.

local HEADER = "x-switchyard-affinity"
local MOST_ROOTS = 16.0
local LEAST_ROOM = 2

local known = {}

-- FNV-1a: replicas' names differ in a few letters only, so `mix` comes after it.
local function seed_of(name)
    local hash = 0xcbf29ce484222325
    for position = 1, #name do
        hash = (hash ~ name:byte(position)) * 0x100000001b3
    end
    return hash
end

-- The finalizer of splitmix64.
local function mix(value)
    value = (value ~ (value >> 30)) * 0xbf58476d1ce4e5b9
    value = (value ~ (value >> 27)) * 0x94d049bb133111eb
    return value ~ (value >> 31)
end

-- The backend's replicas, without Serve's own proxy, which is a backup.
local function replicas_of(backend)
    if known[backend] == nil then
        local found = {}
        for name, server in pairs(core.backends[backend].servers) do
            if not server:is_backup() then
                found[#found + 1] = { name = name, seed = seed_of(name) }
            end
        end
        known[backend] = found
    end
    return known[backend]
end

local function named(txn)
    local key, roots = (txn.f:req_hdr(HEADER) or ""):match("^(%x+) ([%d.]+)$")
    roots = tonumber(roots)
    if roots == nil or #key ~= 16 then
        return nil
    end
    local backend = txn.f:be_name()
    local replicas, up = replicas_of(backend), txn.f:nbsrv(backend)
    if #replicas < 2 or up < 1 then
        return nil
    end
    local hash, scores = tonumber("0x" .. key), {}
    for index, replica in ipairs(replicas) do
        scores[index] = mix(hash ~ replica.seed)
    end
    -- Of the requests under way, this one is among them.
    local mean = txn.f:be_conn(backend) / up
    local room = math.max(LEAST_ROOM, mean + math.min(roots, MOST_ROOTS) * math.sqrt(mean))
    for _ = 1, #replicas do
        local best
        for index in pairs(scores) do
            if best == nil or math.ult(scores[best], scores[index]) then
                best = index
            end
        end
        -- Without the backend's name, which is this one: HAProxy 2.8 writes a null over the slash in Lua's own string.
        local name = replicas[best].name
        scores[best] = nil
        if txn.f:srv_is_up(name) == 1 and txn.f:srv_conn(name) + 1 <= room then
            return name
        end
    end
    return nil
end

core.register_action("affinity", { "http-req" }, function(txn)
    local name = named(txn)
    if name ~= nil then
        txn:set_var("txn.affinity", name)
    end
end, 0)

-- Sets `absent` where no replica of the backend is up: Serve's own proxy would have the request wait for one.
core.register_action("absent", { "http-req" }, function(txn)
    for _, replica in ipairs(replicas_of(txn.f:be_name())) do
        if txn.f:srv_is_up(replica.name) == 1 then
            return
        end
    end
    txn:set_var("txn.absent", true)
end, 0)
