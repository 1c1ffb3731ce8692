// What is shown of a machine, and what can be done to it: functions of the objects
// that the API server has, and of nothing else.

/** key names a machine: a VM, the VMI of it, or a VMI that has no VM. */
export const key = (object) => `${object.metadata.namespace}/${object.metadata.name}`;

const final = (vmi) => vmi.status?.phase === 'Succeeded' || vmi.status?.phase === 'Failed';

/** paused says whether a VMI's guest stands still. */
export const paused = (vmi) => (vmi?.status?.conditions ?? []).some((c) => c.type === 'Paused' && c.status === 'True');

/** attachable says whether a VMI has a console to attach to now. */
export const attachable = (vmi) => vmi?.status?.phase === 'Running' && !vmi.metadata.deletionTimestamp;

const attached = (vmi, device) => vmi.spec?.domain?.devices?.[device] !== false;

/** state is the word of `kubectl get`: a VM's printableStatus, a lone VMI's phase. */
export function state({ vm, vmi }) {
  if (vm) return vm.status?.printableStatus ?? 'Unknown';
  const phase = vmi.status?.phase || 'Pending';
  return phase === 'Running' && paused(vmi) ? 'Running, paused' : phase;
}

const starts = ['Starting', 'Provisioning', 'WaitingForVolumeBinding', 'Pending', 'Scheduling', 'Scheduled'];

/** tone is what a state means, for its colour. trouble is what is wrong with a machine: one that starts is in a bad way then. */
export function tone(word, trouble = '') {
  if (word.includes('aused')) return 'held';
  if (word === 'Running') return 'good';
  if (word === 'Stopped' || word === 'Succeeded') return 'rest';
  if (/^Err|BackOff$|^Failed$|^Unknown$/.test(word)) return 'bad';
  return trouble && starts.includes(word) ? 'bad' : 'busy';
}

// How long the failure of a migration is told.
const recent = 600000;

// A disk of a class that does not exist waits for somebody to do something.
const missingClass = 'StorageClassNotFound';

/** problem is what is wrong with a machine, in the cluster's own words. */
export function problem({ vm, vmi }, now) {
  for (const object of [vmi, vm]) {
    for (const c of object?.status?.conditions ?? []) {
      const wrong = (c.type === 'Failure' && c.status === 'True') || (c.type === 'Synchronized' && c.status === 'False') ||
        (c.type === 'PodScheduled' && c.status === 'False') || (c.type === 'Paused' && c.status === 'True' && c.reason !== 'PausedByUser');
      if (wrong && c.message) return c.message;
    }
  }
  const wait = waitsFor(vm);
  if (wait.includes(missingClass)) return wait;
  const last = vmi?.status?.migrationState;
  if (last?.failed && !last.abortRequested && now - Date.parse(last.endTimestamp) < recent) return `The migration failed: ${last.failureReason}`;
  return '';
}

const migratable = (vmi) => (vmi?.status?.conditions ?? []).some((c) => c.type === 'LiveMigratable' && c.status === 'True');

/**
 * moving says how far a guest is that moves to another node. percent is of what is copied now, first disks and then memory, and null if nothing is.
 * name is the migration's. moving is null if the guest stays where it is.
 */
export function moving({ vmi }) {
  const migration = vmi?.status?.migrationState;
  if (!migration || migration.completed || final(vmi)) return null;
  const { transferredBytes = 0, remainingBytes = 0, totalBytes = 0 } = migration.sourceState?.progress ?? {};
  let text = `Moves from ${migration.sourceNode} to ${migration.targetNode ?? 'another node'}`;
  if (transferredBytes > 0) text += `, ${bytes(transferredBytes)} sent`;
  return { name: migration.migrationName, text, percent: totalBytes > 0 ? Math.max(0, Math.floor(100 * (1 - remainingBytes / totalBytes))) : null };
}

/**
 * filling says which disks a VM waits for, and how much of the disk that is the furthest back is filled, in percent.
 * percent is null if it is not known. filling is null if the VM waits for no disk.
 */
export function filling({ vm }) {
  const message = waitsFor(vm);
  if (!message || message.includes(missingClass)) return null;
  // The name of a DataVolume has no percent sign.
  const percents = [...message.matchAll(/, (\d+(?:\.\d+)?)%/g)].map((match) => Number(match[1]));
  return { text: message, percent: percents.length ? Math.min(...percents) : null };
}

const waitsFor = (vm) => (vm?.status?.conditions ?? []).find((c) => c.type === 'Provisioning' && c.status === 'True')?.message ?? '';

/** awaited are the DataVolumes of a VM into which somebody has to send an image. */
export const awaited = ({ vm }) => [...waitsFor(vm).matchAll(/(?:^|; )DataVolume (\S+) waits for its image/g)].map((match) => match[1]);

// A VM's status says up to a minute late that its DataVolume has got its image.
const late = 90000;

/**
 * images are the lines of a machine about images: of each DataVolume that waits for one, and of each upload, which is
 * { state: 'sending', 'sent' or 'failed', taken, size, began, ended, error }. offered says whether virt-api takes images.
 * Of a line, button says whether an image may be chosen, and percent is null if nothing is on its way.
 */
export function images(machine, uploads, offered, now) {
  const waiting = awaited(machine);
  const lines = [];
  for (const volume of new Set([...(offered ? waiting : []), ...uploads.keys()])) {
    const upload = uploads.get(volume);
    const waits = offered && waiting.includes(volume);
    if (upload?.state === 'sending') lines.push({ volume, button: false, ...passage(upload, now), error: '' });
    else if (upload?.state === 'sent' && waits && now - upload.ended < late) lines.push({ volume, button: false, percent: null, text: 'The image is sent.', error: '' });
    // After one that failed the VM's status may say for a while that the image comes.
    else if (waits || (upload?.state === 'failed' && waitsFor(machine.vm).includes(`DataVolume ${volume} `))) lines.push({ volume, button: offered, percent: null, text: '', error: upload?.error ?? '' });
  }
  return lines;
}

/** passage says how far an upload is, in percent and in words. */
export function passage({ taken, size, began }, now) {
  const percent = Math.floor(100 * taken / size);
  const seconds = (now - began) / 1000;
  let text = `${percent}% of ${bytes(size)}`;
  if (taken === size) text += ', the importer writes the rest';
  else if (seconds >= 2 && taken > 0) text += `, ${bytes(taken / seconds)}/s, ${duration((size - taken) * seconds / taken)} left`;
  return { percent, text };
}

/** bytes is a size as people read it. */
export function bytes(size) {
  let unit = 0;
  for (; size >= 1024 && unit < 4; unit++) size /= 1024;
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit]}`;
}

const duration = (seconds) => (seconds < 100 ? `${Math.ceil(seconds)} s` : seconds < 6000 ? `${Math.ceil(seconds / 60)} min` : `${Math.ceil(seconds / 3600)} h`);

/** facts are the small print, what is known of it. */
export function facts({ vm, vmi }, now) {
  const spec = vmi?.spec ?? vm.spec?.template?.spec ?? {};
  const cpu = spec.domain?.cpu ?? {};
  const cpus = (cpu.cores ?? 1) * (cpu.sockets ?? 1) * (cpu.threads ?? 1);
  const memory = spec.domain?.memory?.guest ?? spec.domain?.resources?.requests?.memory;
  const type = vm?.spec?.instancetype?.name;
  const list = [];
  if (type && !vmi) list.push(type);
  else list.push(cpus === 1 ? '1 CPU' : `${cpus} CPUs`);
  if (memory && !(type && !vmi)) list.push(memory);
  if (vmi?.status?.nodeName) list.push(vmi.status.nodeName);
  const ip = vmi?.status?.interfaces?.[0]?.ipAddress;
  if (ip) list.push(ip);
  list.push(age((vm ?? vmi).metadata.creationTimestamp, now));
  if (!vm) list.push('no VirtualMachine');
  return list;
}

/** age is as kubectl says it, in two units at most. */
export function age(since, now) {
  const seconds = Math.max(0, Math.floor((now - Date.parse(since)) / 1000));
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (minutes < 2) return `${seconds}s`;
  if (hours < 3) return `${minutes}m`;
  if (days < 2) return `${hours}h`;
  return `${days}d`;
}

/**
 * actions are what the buttons of a machine do now: verb is of its VM, or of its VMI.
 * Without enabled there is nothing to do it to, and why says so; whether it may be done, the API server says.
 * migrates says whether the user may move guests, which few users may.
 */
export function actions(machine, migrates) {
  const { vm, vmi } = machine;
  const word = state(machine);
  const runs = Boolean(vmi) && !final(vmi) && !vmi.metadata.deletionTimestamp;
  const live = attachable(vmi);
  const list = [];
  const add = (id, verb, why) => list.push({ id, verb, enabled: !why, why });
  const still = live ? '' : standstill(vmi);
  if (vm) {
    // A machine that cannot start is stopped by its run strategy, if that has it started again and again.
    const strategy = vm.spec?.runStrategy ?? (vm.spec?.running ? 'Always' : 'Halted');
    const stops = runs || word === 'Stopping' || (word !== 'Stopped' && (strategy === 'Always' || strategy === 'Once'));
    add('power', stops ? 'stop' : 'start', { Stopping: 'It is being stopped.', Terminating: 'It is being deleted.' }[word] ?? '');
    add('restart', 'restart', runs ? '' : standstill(vmi));
    const move = moving(machine);
    if (migrates && (move || migratable(vmi))) add('migrate', move ? 'migrate-cancel' : 'migrate', still);
  }
  add('pause', paused(vmi) ? 'unpause' : 'pause', still);
  add('console', undefined, still || (attached(vmi, 'autoattachSerialConsole') ? '' : 'It has no serial console.'));
  add('screen', undefined, still || (attached(vmi, 'autoattachGraphicsDevice') ? '' : 'It has no screen.'));
  return list;
}

/** standstill says why a guest that is not there cannot be used. */
function standstill(vmi) {
  if (!vmi || final(vmi)) return 'Its guest does not run.';
  return vmi.metadata.deletionTimestamp ? 'Its guest is being ended.' : 'Its guest has not started yet.';
}

/** machines joins VMs and VMIs of the same name, in the order of their names. */
export function machines(vms, vmis) {
  const all = new Map();
  for (const [k, vm] of vms) all.set(k, { key: k, vm });
  for (const [k, vmi] of vmis) {
    const owner = (vmi.metadata.ownerReferences ?? []).find((o) => o.controller && o.kind === 'VirtualMachine');
    const vm = vms.get(k);
    // One that is not the VM's own is in its way; the VM's state says so.
    if (!vm || owner?.uid === vm.metadata.uid) all.set(k, { key: k, vm, vmi });
  }
  for (const machine of all.values()) [machine.namespace, machine.name] = machine.key.split('/');
  return [...all.values()].sort((a, b) => (a.key < b.key ? -1 : 1));
}

/**
 * afterClose says what becomes of a console whose connection has ended: 'wait' for the
 * guest to come back, 'open' it again, or 'ask', for the guest is the same and runs: then
 * somebody else may have opened its console, and opening it again would take it from them.
 */
export function afterClose(uid, vmi) {
  if (!attachable(vmi)) return 'wait';
  return vmi.metadata.uid === uid ? 'ask' : 'open';
}
