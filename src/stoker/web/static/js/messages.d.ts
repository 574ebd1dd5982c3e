// What the API sends, as far as the pages use it: a test compares the names with the messages in Python.

export interface JobView {
  id: string; name: string; label: string; recipe: string; mode: string; state: string; is_cancelling: boolean;
  priority: number; epoch: number; attempt: number; machine: string; devices: string[]; submitter: string;
  submitted_s: number; changed_s: number; started_s: number | null; ended_s: number | null;
  step: number | null; of: number | null; metrics: Record<string, Tagged>; says: string; why: string; result: string;
}
export type Tagged = number | { $float: string } | null;
export interface AttemptView {
  number: number; machine: string; devices: string[]; granted_s: number; started_s: number | null;
  ended_s: number | null; ending: string; cause: string; message: string; hint: string; exit_code: number | null;
  facts: Record<string, any>;
}
export interface JobDetails {
  job: JobView; spec: Record<string, unknown>; after: string[]; attempts: AttemptView[];
  events: Record<string, unknown>[]; bundle: Record<string, unknown>; error: Record<string, unknown>;
}
export interface JobPage { jobs: JobView[]; next: string; total: number | null; counts: Record<string, number>; marks: string[] }
export interface SymptomView {
  machine: string; device: string; symptom: string; since_s: number; message: string; hint: string;
}
export interface MachineHolder {
  job: string; name: string; devices: string[]; memory_bytes: number | null; ram_bytes: number | null;
  is_shared: boolean; started_s: number | null;
}
export interface MachineView {
  name: string; state: string; why: string; until_s: number | null; version: string; last_seen_s: number;
  ends_s: number | null; host: Record<string, any>; report: Record<string, any>; holders: MachineHolder[];
  slots: number; held: number; jobs: string[]; cores: number | null; ram_bytes: number | null;
  devices: Record<string, any>[]; symptoms: SymptomView[]; is_skewed: boolean; drift: string[];
}
export interface MachineList { machines: MachineView[] }
export interface PendingReason { reason: string; count: number; jobs: string[] }
export interface Overview {
  name: string; is_fleet: boolean; server_s: number; seq: number; version: string; user: string; role: string;
  jobs: Record<string, number>; machines: Record<string, number>; devices: number; idle_devices: number;
  running: JobView[]; pending: PendingReason[]; failed: JobView[]; failed_count: number;
  symptoms: SymptomView[]; done_s: number | null; settling_s: number;
}
export interface Series {
  name: string; steps: number[]; values: Tagged[]; times_s: number[]; total: number; is_lower_better: boolean | null;
  best_step: number | null; best: Tagged; last_step: number | null; last: Tagged; source: string;
}
export interface SeriesView {
  job: string; names: string[]; series: Series[]; attempts: Record<string, number>; started_s: number | null;
}
export interface StageNode {
  name: string; title: string; stage: string; ending: string; why: string; message: string; seconds: number | null;
  step: number | null; of: number | null; instances: number | null; layer: number; place: number; endings: Record<string, number>;
}
export interface StageGraph { job: string; nodes: StageNode[]; edges: [number, number][]; left_out: number }
export interface SettingView { path: string; value: unknown; origin: string; layers: [string, unknown][] }
export interface ConfigView { job: string; settings: SettingView[] }
export interface CodeDiff {
  job: string; parent: string; files: string[]; text: string; is_cut: boolean; note: string;
}
export interface LogLineView { number: number; text: string; node: string; is_cut: boolean }
export interface LogPage {
  job: string; lines: LogLineView[]; nodes: string[]; first: number; total: number; unfinished: LogLineView[]; next: string;
  is_anew: boolean; is_over: boolean; matches: number | null; note: string;
}
export interface FileView { path: string; size_bytes: number }
export interface FileList { attempt: number; files: FileView[]; is_over: boolean }
export interface ResultFile { path: string; size_bytes: number; sha256: string }
export interface ResultFiles { tree: string; count: number; size_bytes: number; files: ResultFile[] }
export interface JobExplanation {
  job: JobView; verdict: string; never: string; after: Record<string, string>; ahead: number | null;
  starts_s: number | null; based_on: string; machines: Record<string, any>[]; changes: string[]; chosen: string;
  lines: string[]; rows: ExplanationRow[];
}
export interface ExplanationRow { machine: string; device: string; score: string; why: string }
export interface SweepParameter {
  name: string; is_number: boolean; is_log: boolean; low: number | null; high: number | null; values: string[]; importance: number | null;
}
export interface SweepTrial {
  job: string; number: number; label: string; state: string; parameters: Record<string, unknown>; metrics: Record<string, Tagged>;
  best_step: number | null; step: number | null; of: number | null; seconds: number | null; place: number | null;
}
export interface SweepView {
  name: string; metric: string; is_lower_better: boolean; metrics: string[]; jobs: Record<string, number>;
  parameters: SweepParameter[]; trials: SweepTrial[]; total: number; importance_by: string; note: string;
}
export interface SweepSummary {
  name: string; recipe: string; submitter: string; jobs: Record<string, number>; total: number;
  submitted_s: number | null; changed_s: number | null;
}
export interface SweepList { sweeps: SweepSummary[]; next: string; total: number; note: string }
export interface ComparedValue { section: string; name: string; values: string[]; differs: boolean }
export interface ComparedBest { step: number | null; metrics: Record<string, Tagged> }
export interface ComparisonView {
  jobs: JobView[]; facts: ComparedValue[]; metrics: string[]; metric: string; is_lower_better: boolean; bests: ComparedBest[];
}
export interface ChangedRows {
  seq: number; server_s: number; jobs: JobView[]; gone: string[]; machines: MachineView[];
  counts: Record<string, number>; resync: boolean;
}
export interface LoginView { user: string; role: string; expires_s: number | null; key?: string }
export interface DoneView { changed: string[]; notes: string[] }
export interface ResultCard {
  job: string; digest: string; path: string; text: string; is_cut: boolean; note: string;
}
export interface DeviceTelemetry {
  device: string; utilisation_percent: number | null; memory_total_bytes: number | null; memory_used_bytes: number | null;
  power_w: number | null; power_limit_w: number | null; temperature_c: number | null; throttle: string[] | null;
}
export interface AlertView { device: string; kind: string; severity: number; message: string; for_s: number }
export interface TelemetrySeries {
  channel: string; unit: string; low: (number | null)[]; mean: (number | null)[]; high: (number | null)[];
}
export interface DeviceTelemetryView {
  device: string; name: string; now: DeviceTelemetry | null; times_s: number[]; throttled: number[]; series: TelemetrySeries[];
}
export interface TelemetryView {
  machine: string; server_s: number; from_s: number; to_s: number; period_s: number; reported_s: number | null;
  devices: DeviceTelemetryView[]; alerts: AlertView[];
}
export interface TimelineSpan {
  machine: string; devices: string[]; job: string; name: string; attempt: number; from_s: number; to_s: number | null; ending: string;
}
export interface TimelineView {
  server_s: number; from_s: number; to_s: number; spans: TimelineSpan[]; is_cut: boolean; whole_from_s: number | null;
}
export interface AdapterRow {
  job: string; label: string; state: string; place: number; place_on_data: number; rank: number | null; alpha: number | null;
  data: string; val_loss: number | null; train_loss: number | null; epoch: number | null; step: number | null; result: string;
  parameters: Record<string, unknown>;
}
export interface AdapterBase { base: string; adapters: AdapterRow[]; total: number }
export interface AdapterBoard { bases: AdapterBase[]; note: string }
export interface LineageInput { name: string; digest: string; job: string }
export interface ModelRow {
  digest: string; job: string; name: string; label: string; recipe: string; machine: string; submitter: string;
  attempt: number; made_s: number; size_bytes: number; is_pinned: boolean; is_pruned: boolean; metrics: Record<string, Tagged>;
  data: LineageInput[]; code: LineageInput[]; parents: LineageInput[]; commit: string; environment: string;
}
export interface ModelPage { models: ModelRow[]; next: string }
export interface PriorityWaits { priority: number; jobs: number; median_s: number; p95_s: number; max_s: number }
export interface SimulatedStart { machine: string; starts_s: number | null; ends_s: number | null; is_guess: boolean }
export interface SimulatedJob { job: string; now: SimulatedStart; changed: SimulatedStart | null }
export interface SimulationForecast {
  done_s: number | null; machines: number; jobs: number; unfinished: number; omitted: number; is_guess: boolean; waits: PriorityWaits[];
  step_s: number; waiting: number[]; failures: number;
}
export interface SimulationView {
  at_s: number; now: SimulationForecast; changed: SimulationForecast | null; added: string[]; removed: string[];
  blocked: number; jobs: SimulatedJob[]; kinds: string[]; note: string;
}
export interface FaultView { line: number; column: number; key: string; message: string; hint: string; shown: string }
export interface ManifestEntry { name: string; line: number; does: string; count: number; faults: number; why_not: string }
export interface JobSubmissionResult {
  id: string; name: string; number: number; outcome: string; state: string; changes: string[]; forecast: string;
}
export interface SubmissionResponse { jobs: JobSubmissionResult[]; counts: Record<string, number>; vanished: string[] }
export interface ManifestView {
  name: string; entries: ManifestEntry[]; more: number; faults: FaultView[]; fault_count: number; notes: string[];
  command: string; answer: SubmissionResponse | null;
}
export interface RepeatSetting { path: string; text: string }
export interface RepeatForm {
  job: string; name: string; settings: RepeatSetting[]; program: string; command: string; can_submit: boolean; notes: string[];
}
export interface RepeatView {
  job: string; differs: string[]; faults: FaultView[]; notes: string[]; command: string; answer: SubmissionResponse | null;
}
