// What the console's scripts have in common for the type checker: the members that they read of the API's documents, and
// what they build pages from. Times are Unix seconds, weights whole percentages.

type Weights = Record<string, number>;
/** The number of a deployment's colour. */
type ColourOf = (deployment: string) => number;
type Maybe<T> = T | null | undefined;

/** What a format returns: null only for a value that may be missing. */
type Shown<T> = T extends number ? string : null;

// --- The page ---

type Leaf = Node | string | number | boolean | null | undefined;
type Child = Leaf | readonly Child[];

interface Props {
  class?: string | null;
  style?: Record<string, string>;
  on?: Record<string, (event: any) => unknown>;
  key?: string;
  opaque?: boolean;
  [attribute: string]: unknown;
}

type Mark = "good" | "bad" | "warn" | "info" | "wait";
type Head = { label: Child; number?: boolean; title?: string };
type Announce = (text: string) => void;
type Api = import("./static/js/api.js").Api;
type ApiError = import("./static/js/api.js").ApiError;

interface FetchOptions {
  method?: string;
  headers?: Record<string, string>;
  body?: string;
  signal?: AbortSignal;
  timeout?: number | null;
  sent?: () => void;
}

/** From the sending of a request to the first byte of its answer, and to the last, in milliseconds. */
interface WireTimes {
  firstByteMs: number;
  wholeMs: number;
}

/** What `askForReason` asks. */
interface Question {
  title: string;
  explain: Child;
  label: string;
  danger?: boolean;
  typed?: string | null;
  act: (reason: string) => unknown;
}

type Poll = (
  task: (signal: AbortSignal) => unknown,
  options?: { every?: number; failed?: (error: Error) => void },
) => () => void;

/** What a page's `mount(root, context)` gets. It returns a function that ends the page. */
interface Context {
  api: Api;
  poll: Poll;
  announce: Announce;
  names: string[];
  parameters: Record<string, string>;
}

interface PageModule {
  title: string;
  mount(root: HTMLElement, context: Context): Promise<() => void>;
}

/** Swagger UI's function, on the page /docs. */
declare const SwaggerUIBundle: (options: Record<string, unknown>) => any;

// --- Signing in ---

interface Oidc {
  issuer: string;
  authorization_endpoint: string;
  token_endpoint: string | null;
  client_id: string;
  scope: string;
  parameters: Record<string, string>;
  names_itself: boolean;
  token: "access_token" | "id_token";
}

interface Ways {
  credentials: boolean;
  /** Whether nothing is served without a key; null: unknown. */
  required: boolean | null;
  oidc: Oidc | null;
}

type GivenKey = { key: string; stored: boolean };
type Redirected = {
  fields: Record<string, string>;
  pending: { state: string; nonce: string; verifier: string; hash: string } | null;
};

// --- GET /api/me and /api/callers ---

interface Limit {
  kind: "requests" | "tokens" | "concurrent";
  limit: number;
  used: number;
  remaining: number | null;
  resets_in_s: number | null;
}

/** `colour`: the same on every page. */
interface Usable {
  deployment: string;
  weight: number;
  images: boolean;
  colour: number;
}

interface MyEndpoint {
  endpoint: string;
  tasks: string[];
  deployments: Usable[];
  feedback: { metric: string; type: string }[];
  limits: Limit[];
}

interface Me {
  caller: string;
  anonymous: boolean;
  manages: boolean;
  operates: string[];
  views: boolean;
  limits_counted: string;
  /** How many colours there are for deployments, numbered from 1. */
  colours: number;
  server: { version: string | null; environment: string | null; docs_url: string | null };
  endpoints: MyEndpoint[];
}

interface CallerUse {
  caller: string | null;
  endpoint: string | null;
  requests: number;
  not_answered: number;
  prompt_tokens: number;
  completion_tokens: number;
  last_at: number;
}

interface Callers {
  since: number;
  view: string;
  callers: CallerUse[];
}

// --- /api/keys ---

interface DailyUse {
  requests: number;
  not_answered: number;
  prompt_tokens: number;
  completion_tokens: number;
}

interface ApiKey {
  id: string;
  name: string;
  source: "file" | "issued";
  endpoints: string[] | null;
  expires: number | null;
  previous: number | null;
  limits: Record<string, number | null> | null;
  /** Those of the configuration for the caller with this name. */
  configured_limits: Record<string, number | null> | null;
  group: string | null;
  created_at: number | null;
  created_by: string | null;
  last_used: number | null;
  uses: DailyUse[] | null;
  revision: string | null;
}

interface Keys {
  at: number;
  days: number;
  /** Whether managers may create keys here. */
  issue_keys: boolean;
  why_not: string | null;
  endpoints: string[];
  keys: ApiKey[];
  /** What keys were used for that are no more; null while nobody says. */
  former: Record<string, Pick<ApiKey, "last_used"> & { uses: DailyUse[] }> | null;
}

interface KeyActions {
  api: Api;
  announce: Announce;
  changed: () => unknown;
}

interface KeyQuestion {
  title: string;
  label: string;
  document: Keys;
  key: ApiKey | null;
  act: (wanted: Record<string, unknown>) => unknown;
}

// --- GET /api/overview ---

type Quantiles = { p50: number; p95: number } | null;
type Sticky = { by: "user" | "api_key" | "conversation" | "header"; name?: string };

/** Requests, and the parts that they consist of. */
interface Outcomes {
  requests: number;
  answered: number;
  errors: number;
  refused: number;
  left: number;
}

interface Deployment extends Outcomes {
  deployment: string;
  model: string;
  role: "traffic" | "fallback" | "mirror" | "former";
  /** The same on every page; null for one that the configuration lacks. */
  colour: number | null;
  weight: number;
  share: number | null;
  drawn: number;
  diverted: number;
  first_token_s: Quantiles;
  inter_token_s: Quantiles;
  output_tokens_per_s: number | null;
  in_flight: number;
  breaker: "open" | "closed";
  called: boolean;
  stopped: boolean;
  replicas: Record<string, number> | null;
  /** Of those that run, by the control plane: the ones whose engines requests have seen die. */
  dead?: number;
  asleep: boolean;
  /** Its replicas are this cluster's, and nothing has told of them. */
  is_unknown: boolean;
}

interface Finding {
  severity: Mark;
  text: string;
  /** Of the requests that it is about, as a filter of the list. */
  status?: "failed" | "refused";
}

interface Endpoint extends Outcomes {
  endpoint: string;
  tasks: string[];
  sticky: Sticky | null;
  plan: string;
  experiment: string | null;
  /** An older router does not say it. */
  mirror?: { deployment: string; percent: number } | null;
  requests_per_s: number | null;
  drawn: number;
  queued: number;
  findings: Finding[];
  unassigned: Outcomes;
  deployments: Deployment[];
  may_operate: boolean;
}

interface Overview {
  at: number;
  routers: number | null;
  replicas_age_s: number | null;
  window_s: number;
  why_not: string | null;
  has_controller: boolean;
  endpoints: Endpoint[];
}

// --- /api/endpoints/{endpoint}/mirror ---

interface ShadowReport {
  shadow: string;
  since: number;
  copies: number;
  skipped: Record<string, number>;
  primaries: { primary: string; failed: Record<string, number> }[];
}

// --- /api/endpoints/{endpoint}/traffic ---

interface Plan {
  plan: string;
  generation: number;
  weights: Weights;
  overrides: { unit: string; deployment: string; until: number | null }[];
  by: string | null;
  reason: string | null;
}

interface PastPlan {
  plan: string;
  generation: number;
  weights: Weights;
  overrides: number;
  expires: number | null;
  withdrawn: Record<string, string>;
  content: string;
  since: number;
  by: string | null;
  reason: string | null;
}

interface Moves {
  keys: number;
  share: number;
  pairs: { from: string; to: string; share: number }[];
}

interface DryRun {
  after: { weights: Weights };
  moves: { made_up_keys: Moves; recent_keys: Moves };
}

interface Assignment {
  deployment: string | null;
  why: string;
  deployments: { deployment: string; weight: number; score: number | null }[];
}

// --- The playground ---

type NumberName =
  "temperature" | "topP" | "topK" | "minP" | "maxTokens" | "seed" | "frequencyPenalty" | "presencePenalty";

type Part = { type: "text"; text: string } | { type: "image_url"; image_url: { url: string } };
type Message = { role: string; content: string | Part[] };

/**
 * The form's fields as typed. `deployment`: null as the traffic decides; `image`: a data URL; `history`: the messages
 * before the prompt; `by`: the answering deployment, "" as the traffic decides, "*" all but `without`.
 */
interface FormValues extends Record<NumberName, string> {
  endpoint: string;
  task: string;
  deployment?: string | null;
  history?: Message[];
  prompt: string;
  documents: string;
  system: string;
  stop: string;
  tools: string;
  schema: string;
  image: string | null;
  probabilities: boolean;
  by: string;
  without: string[];
}

/** Who is asked: a deployment of the endpoint, or null as the traffic decides. */
type Column = { deployment: string | null; title: string; weight: number | null };

/** A card's content, to show it again. `column`: the deployment that was asked, "" if the traffic decided. */
interface SavedAnswer {
  column: string;
  name: string;
  text: string;
  reasoning: string;
  facts: [string, string][];
  state: string;
  look: string;
  problem: string;
  why: string;
  id: string;
  plain: boolean;
}

interface Turn {
  prompt: string;
  image: string | null;
  answers: SavedAnswer[];
}

/** A Markdown document's element, or its text. */
type Tree = string | { tag: string; attributes: Record<string, string>; children: Tree[] };

interface ApiRequest {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: Record<string, any>;
}

interface Tool {
  type: string;
  function: Record<string, unknown>;
}

interface Token {
  token: string;
  logprob: number | null;
  others: { token: string; logprob: number }[];
}

type Piece = { text: string; tokens: Token[] };
type Edit = { kind: "same" | "removed" | "added"; text: string };
type Program = { code: string; left: string[] };
type Programmer = (request: ApiRequest, url: string) => Program;
type Snippet = Program & { id: string; title: string; language: string };

// --- GET /api/history ---

interface RequestSeries {
  endpoint: string;
  deployment: string;
  requests_per_s: number[];
  errors: number[];
  refused: number[];
  left: number[];
  /** Streams whose engine has died. */
  lost: number[];
  output_tokens_per_s: number[];
  first_token_p50_s: (number | null)[];
  first_token_p95_s: (number | null)[];
  /** When no replica ran; an older controller does not say. */
  outages?: Outage[];
}

interface Outage {
  from: number;
  /** Null: it goes on. */
  to: number | null;
  /** Of one without an end: whether it has ended as far as the page knows. */
  isOver?: boolean;
}

/** Each series has one value for each of the times `at`. The last point ends `until`, and may be shorter than `step_s`. */
interface RequestHistory {
  view: string;
  step_s: number;
  at: number[];
  until: number;
  /** When no router answered; an older controller does not say. */
  no_router?: Outage[];
  /** When a router ended that did not say what it had done at last. */
  lost_routers?: Outage[];
  lost_requests?: { at: number; endpoint: string; requests: number }[];
  since?: number | null;
  series: RequestSeries[];
  grafana_url: string | null;
}

// --- GET /api/models ---

interface LoadedReplica {
  id: string;
  state: string;
  is_silent: boolean;
  node: string | null;
  accelerator: string | null;
  started_at: number | null;
  ready_at: number | null;
  start_s: number | null;
  running: number | null;
  waiting: number | null;
  kv_cache_use: number | null;
  prefix_hit_rate: number | null;
}

interface LoadedEngine {
  vllm: string;
  ray: string;
  revision: string | null;
  device: string;
  devices: number;
  arguments: Record<string, unknown>;
  replicas: string[];
}

interface LoadedApplication {
  application: string;
  deployments: { deployment: string; model: string }[];
  endpoints: string[];
  status: string | null;
  message: string | null;
  source: unknown;
  arguments: Record<string, unknown> | null;
  running_replicas: number | null;
  running: number | null;
  waiting: number | null;
  kv_cache_use: number | null;
  prefix_hit_rate: number | null;
  starts: {
    since: number;
    count: number;
    median_s: number | null;
    longest_s: number | null;
    last_at: number | null;
    /** Of the replicas that started, those that there are no more; null: not known. */
    gone: number | null;
    /** Those of them that were told to stop. */
    stopped: number | null;
  } | null;
  engines: LoadedEngine[];
  replicas: LoadedReplica[];
}

interface LoadedElsewhere {
  deployment: string;
  model: string;
  endpoints: string[];
}

interface LoadedModels {
  at: number;
  why_not: string | null;
  applications: LoadedApplication[];
  elsewhere: LoadedElsewhere[];
}

// --- GET /api/requests ---

type Outcome = "answered" | "errors" | "refused" | "left";

interface FailedAttempt {
  deployment: string;
  engine: string;
  at_s: number;
  until_s: number;
  why: string;
  /** Whether its engine was lost in the middle of a stream. */
  interrupted: boolean;
  /** Whether another engine went on with the stream. */
  continued: boolean;
}

interface ListedRequest {
  id: string;
  /** null: it runs. */
  outcome: Outcome | null;
  at: number;
  dialect: string;
  operation: string;
  status: number;
  duration_s: number;
  endpoint: string;
  deployment: string;
  caller: string;
  reason: string;
  plan: string;
  error: string;
  stream: boolean;
  attempts: number;
  failed_attempts: FailedAttempt[];
  /** The replica that has answered, "" if it has not told its name. */
  engine: string;
  moves: number;
  pause_s: number;
  pauses: [number, number][];
  /** How long it has waited for another engine so far; null: it does not. */
  paused_s: number | null;
  admitted_s: number | null;
  /** From when to when it waited for a replica to start; an older router does not say it. */
  lacked?: [number, number] | null;
  sent_s: number | null;
  first_byte_s: number | null;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  max_tokens: number | null;
  sent_tokens: number | null;
  sent_events: number | null;
  trace: string;
  message: string;
  code: string;
  /** The error's type; an older router does not say it. */
  type?: string;
  param: string;
  is_engines: boolean;
  engine_message: string;
  running: boolean;
  text: "" | "whole" | "redacted";
  /** Of one that runs: for how long its router has not been heard; null: it is, or an older one does not say it. */
  silent_s?: number | null;
  /** The seconds that the request itself allowed, if they were over before its end; an older router does not say it. */
  own_limit_s?: number | null;
}

interface ErrorGroup {
  endpoint: string;
  deployment: string;
  status: number;
  error: string;
  outcome: Outcome;
  count: number;
  is_whole: boolean;
  last_at: number;
  id: string;
  message: string;
  messages: number;
  /** Whether no other message is as frequent; an older controller of experiments does not say. */
  is_most_frequent?: boolean;
  /** The most frequent ones; an older controller does not say them. */
  said?: { message: string; count: number }[];
  is_engines: boolean;
  engine_message: string;
}

/** Requests of each minute, and by their reason. */
interface MinuteCounts {
  since: number;
  step_s: number;
  requests: number[];
  reasons: { reason: string; requests: number }[];
}

interface RequestList {
  view: string;
  everyones: boolean;
  /** Endpoints at which everyone's requests are seen. */
  operated: string[];
  trace_url: string | null;
  texts: string[];
  requests: ListedRequest[];
  matching: number;
  older_matching: number;
  running: number;
  kept: number;
  older_kept: number;
  since: number | null;
  groups: ErrorGroup[];
  endpoints: string[];
  deployments: string[];
  callers: string[];
  errors: string[];
  no_such_endpoint: string | null;
  unauthorized?: MinuteCounts;
  /** An older controller of experiments does not say. */
  unknown_routes?: MinuteCounts;
}

// --- GET /api/audit ---

interface AuditRecord {
  id: string;
  at: number;
  action: string;
  outcome: "accepted" | "refused" | "failed";
  status: number;
  error: string;
  call: string;
  caller: string;
  address: string;
  forwarded_for: string;
  endpoint: string;
  experiment: string;
  reason: string | null;
  before: Record<string, unknown> | null;
  after: Record<string, unknown> | null;
  count: number;
}

/** `before`: the id to ask for older ones, null if there are none. `names`: by which all records can be found. */
interface AuditPage {
  records: AuditRecord[];
  before: string | null;
  /** Lines that are not what was written, by the file's path. */
  damaged?: Record<string, number>;
  /** By which all records can be found; an older controller says none. */
  names?: { caller: string[]; endpoint: string[]; action: string[] };
}

// --- GET /api/requests/{id} ---

interface Exposure {
  plan: { endpoint: string; id: string; weights: Weights };
  assigned: string;
  served: string | null;
  reason: string;
  error: string;
  status: number;
  finish: string;
  attempts: number;
  moves: number;
  pause_s: number | null;
  ttft_s: number | null;
  duration_s: number;
  itl_mean_s: number | null;
  itl_max_s: number | null;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  dialect: string;
  task: string;
  stream: boolean;
  at: number;
  feedback: Record<string, number> | null;
  flags: string[];
}

// --- /api/experiments ---

type Action = "resume" | "advance" | "pause" | "rollback" | "promote" | "stop";
type ExperimentState = "draft" | "running" | "paused" | "stopped";
type Decision = "ship" | "do_not_ship" | "keep_going" | "invalid";
type Scale = "relative" | "absolute";
type Effect = { estimate: number | null; lower: number | null; upper: number | null };
type Span = { low: number; high: number };

interface Compared {
  metric: string;
  treatment: string;
  better: string;
  scale: Scale;
  minimal_effect: number;
  effect: Effect;
  verdict: string;
}

interface Comparison extends Compared {
  statistic: string;
  role: "primary" | "secondary";
  doubt: string;
  measured_on: string;
  since: number | null;
  no_longer?: string | null;
  reason: string;
  units_needed: number | null;
  days_needed: number | null;
  values: { arm: string; value: number | null }[];
}

interface Acting {
  state: "running" | "paused" | "stopped";
  cause: string;
  text: string;
  by: string | null;
  step: number | null;
  share: number;
  next_share: number | null;
  until: number | null;
}

interface Experiment {
  experiment: string;
  endpoint: string;
  mode: string;
  state: ExperimentState;
  control: string;
  treatments: string[];
  headline: string;
  decision: Decision | null;
  decisions?: Record<string, Decision>;
  next: string;
}

interface Summary extends Experiment {
  units: Record<string, number>;
  alarms: number;
  alarm_kinds: string[];
  primary: Compared[];
  acting: Acting | null;
}

interface Guardrail {
  event: string;
  treatment: string;
  limit: string;
  action: string;
  alarm: boolean;
  alarmed_at: number | null;
  unhealthy: boolean;
  one_caller: boolean;
  events: Record<string, number>;
  requests: Record<string, number>;
  of_requests: Record<string, number>;
  blind?: string;
  detectable: number | null;
}

interface SubgroupEffect {
  attribute: string;
  name: string;
  metric: string;
  treatment: string;
  scale: Scale;
  effect: Effect;
  difference: Effect;
  differs: boolean;
}

interface ArmDistribution {
  arm: string;
  requests: number;
  values: number[];
}

interface Distribution {
  metric: string;
  shares: number[];
  arms: ArmDistribution[];
}

interface ExperimentReport extends Experiment {
  at: number;
  started_at: number | null;
  details: string[];
  requests: Record<string, number>;
  running?: Record<string, number>;
  /** Those of them that may never end, as of a router that is gone; an older controller does not say it. */
  unknown?: Record<string, number>;
  waiting?: number;
  forced: Record<string, number>;
  primary: Comparison[];
  secondary: Comparison[];
  subgroups?: { alpha: number; effects: SubgroupEffect[] } | null;
  guardrails: Guardrail[];
  sample_ratio: {
    alarm: boolean;
    attribution: string[];
    plans: { plan: string; weights: Weights; units: Record<string, number> }[];
  };
  /** `changed_at`: when an effect has changed. */
  alarms: { at: number; text: string; changed_at?: number | null }[];
  warnings: string[];
  service: string[];
  distributions?: Distribution[];
}

/** A look of an experiment's history. */
interface Look {
  at: number;
  effect: Effect;
}

/** An event of the journal. */
interface Occurrence {
  id: string;
  kind: string;
  at: number;
  text: string;
  experiment?: string;
  endpoint?: string;
}
