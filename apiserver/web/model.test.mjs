// node --test apiserver/web/model.test.mjs, or make web-check
import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as model from './page/model.js';

const meta = (more) => ({ namespace: 'ns', name: 'm', uid: 'u1', creationTimestamp: '2026-01-01T00:00:00Z', ...more });
const vm = (printableStatus, more) => ({ metadata: meta({ uid: 'vm1' }), spec: { template: { spec: { domain: { cpu: { cores: 2 }, memory: { guest: '1Gi' } } } } }, status: { printableStatus }, ...more });
const vmi = (phase, more = {}, status = {}) => ({ metadata: meta({ ownerReferences: [{ controller: true, kind: 'VirtualMachine', uid: 'vm1' }], ...more }), spec: {}, status: { phase, ...status } });
const held = { conditions: [{ type: 'Paused', status: 'True', reason: 'PausedByUser', message: 'by user' }] };
const actions = (machine) => model.actions(machine).map((a) => `${a.verb ?? a.id}${a.enabled ? '' : '-'}`).join(' ');

test('states are those of kubectl get', () => {
  assert.equal(model.state({ vm: vm('Starting') }), 'Starting');
  assert.equal(model.state({ vm: vm(undefined) }), 'Unknown');
  assert.equal(model.state({ vmi: vmi('Scheduling') }), 'Scheduling');
  assert.equal(model.state({ vmi: vmi('Running', {}, held) }), 'Running, paused');
  for (const [word, tone] of Object.entries({ Running: 'good', Paused: 'held', 'Running, paused': 'held', Stopped: 'rest', Succeeded: 'rest', Starting: 'busy', Stopping: 'busy',
    Scheduled: 'busy', ErrorUnschedulable: 'bad', ErrImagePull: 'bad', ImagePullBackOff: 'bad', CrashLoopBackOff: 'bad', Failed: 'bad', Unknown: 'bad' })) {
    assert.equal(model.tone(word), tone, word);
  }
  assert.equal(model.tone('Starting', 'exceeded quota'), 'bad', 'what is in the way of a start');
  assert.equal(model.tone('Running', 'The migration failed'), 'good');
  assert.equal(model.tone('Stopping', 'exceeded quota'), 'busy');
  const waits = { vm: vm('Provisioning') };
  waits.vm.status.conditions = [{ type: 'Provisioning', status: 'True', message: 'DataVolume d is Pending: StorageClassNotFound, PVC d names the StorageClass x, which does not exist' }];
  assert.match(model.problem(waits, 0), /the StorageClass x/);
  assert.equal(model.filling(waits), null, 'nothing moves');
});

test('a button that does nothing says why', () => {
  const why = (machine, id) => model.actions(machine, true).find((a) => a.id === id).why;
  assert.equal(why({ vm: vm('Stopped') }, 'restart'), 'Its guest does not run.');
  assert.equal(why({ vm: vm('Stopped') }, 'power'), '');
  assert.equal(why({ vm: vm('Starting'), vmi: vmi('Scheduling') }, 'console'), 'Its guest has not started yet.');
  assert.equal(why({ vm: vm('Stopping'), vmi: vmi('Running', { deletionTimestamp: 'now' }) }, 'pause'), 'Its guest is being ended.');
  assert.equal(why({ vm: vm('Stopping'), vmi: vmi('Running', { deletionTimestamp: 'now' }) }, 'power'), 'It is being stopped.');
  assert.equal(why({ vm: vm('Terminating') }, 'power'), 'It is being deleted.');
  const without = (device) => ({ vmi: { ...vmi('Running'), spec: { domain: { devices: { [device]: false } } } } });
  assert.equal(why(without('autoattachGraphicsDevice'), 'screen'), 'It has no screen.');
  assert.equal(why(without('autoattachSerialConsole'), 'console'), 'It has no serial console.');
  assert.equal(why({ vm: vm('Running'), vmi: vmi('Running') }, 'screen'), '');
});

test('actions are those that there is something for', () => {
  assert.equal(actions({ vm: vm('Stopped') }), 'start restart- pause- console- screen-');
  assert.equal(actions({ vm: vm('Running'), vmi: vmi('Running') }), 'stop restart pause console screen');
  assert.equal(actions({ vm: vm('Paused'), vmi: vmi('Running', {}, held) }), 'stop restart unpause console screen');
  assert.equal(actions({ vm: vm('Starting'), vmi: vmi('Scheduling') }), 'stop restart pause- console- screen-');
  assert.equal(actions({ vm: vm('Stopping'), vmi: vmi('Running', { deletionTimestamp: 'now' }) }), 'stop- restart- pause- console- screen-');
  const as = (word, spec) => vm(word, { spec });
  assert.equal(actions({ vm: as('CrashLoopBackOff', { runStrategy: 'Always' }), vmi: vmi('Failed') }), 'stop restart- pause- console- screen-');
  assert.equal(actions({ vm: as('CrashLoopBackOff', { running: true }) }), 'stop restart- pause- console- screen-', 'it cannot start');
  assert.equal(actions({ vm: as('CrashLoopBackOff', { runStrategy: 'Manual' }) }), 'start restart- pause- console- screen-', 'it cannot start, and is not tried again');
  assert.equal(actions({ vm: as('DataVolumeError', { runStrategy: 'Always' }) }), 'stop restart- pause- console- screen-');
  assert.equal(actions({ vm: as('DataVolumeError', { runStrategy: 'Halted' }) }), 'start restart- pause- console- screen-');
  const bare = vmi('Running');
  bare.spec = { domain: { devices: { autoattachGraphicsDevice: false } } };
  assert.equal(actions({ vmi: bare }), 'pause console screen-');
});

test('a guest that can migrate has a button for who may move it, and a bar on its way', () => {
  const able = { conditions: [{ type: 'LiveMigratable', status: 'True' }] };
  const of = (migrationState) => ({ vm: vm('Running'), vmi: vmi('Running', {}, { ...able, migrationState }) });
  const names = (machine, migrates = true) => model.actions(machine, migrates).filter((a) => a.id === 'migrate').map((a) => `${a.verb}${a.enabled ? '' : '-'}`).join(' ');
  const under = { migrationName: 'go', sourceNode: 'n1' };
  assert.equal(names(of(undefined)), 'migrate');
  assert.equal(names(of(undefined), false), '', 'who may not');
  assert.equal(names({ vm: vm('Running'), vmi: vmi('Running') }), '', 'a guest that cannot');
  assert.equal(names({ vmi: vmi('Running', {}, able) }), '', 'virt-api moves VMs');
  assert.equal(names(of(under)), 'migrate-cancel');
  assert.equal(names(of({ ...under, completed: true })), 'migrate');
  assert.equal(model.moving(of(undefined)), null);
  assert.equal(model.moving(of({ ...under, completed: true })), null);
  assert.deepEqual(model.moving(of(under)), { name: 'go', text: 'Moves from n1 to another node', percent: null });
  assert.deepEqual(model.moving(of({ ...under, targetNode: 'n2', sourceState: { progress: { transferredBytes: 3 << 20, remainingBytes: 1 << 20, totalBytes: 4 << 20 } } })),
    { name: 'go', text: 'Moves from n1 to n2, 3.0 MiB sent', percent: 75 });
  const now = Date.parse('2026-01-01T00:10:00Z');
  const failed = { ...under, completed: true, failed: true, failureReason: 'too slow', endTimestamp: '2026-01-01T00:05:00Z' };
  assert.equal(model.problem(of(failed), now), 'The migration failed: too slow');
  assert.equal(model.problem(of(failed), now + 600000), '', 'long ago');
  assert.equal(model.problem(of({ ...failed, abortRequested: true }), now), '', 'cancelled');
});

test('VMs and VMIs of the same name are one machine', () => {
  const map = (...objects) => new Map(objects.map((o) => [model.key(o), o]));
  const joined = model.machines(map(vm('Running')), map(vmi('Running'), vmi('Running', { name: 'a', ownerReferences: undefined })));
  assert.deepEqual(joined.map((m) => [m.key, Boolean(m.vm), Boolean(m.vmi)]), [['ns/a', false, true], ['ns/m', true, true]]);
  const [other] = model.machines(map(vm('Stopped')), map(vmi('Running', { ownerReferences: undefined })));
  assert.equal(other.vmi, undefined, 'a VMI that is not the VM\'s');
});

test('a console that ended comes back with the guest, and is never taken back from others', () => {
  assert.equal(model.afterClose('u1', vmi('Running')), 'ask');
  assert.equal(model.afterClose('u1', vmi('Running', { uid: 'u2' })), 'open');
  assert.equal(model.afterClose('u1', vmi('Scheduled', { uid: 'u2' })), 'wait');
  assert.equal(model.afterClose('u1', vmi('Running', { deletionTimestamp: 'now' })), 'wait');
  assert.equal(model.afterClose('u1', undefined), 'wait');
});

test('facts, ages and what is wrong', () => {
  const at = (seconds) => model.age('2026-01-01T00:00:00Z', Date.parse('2026-01-01T00:00:00Z') + 1000 * seconds);
  assert.deepEqual([0, 119, 120, 10799, 10800, 172799, 172800].map(at), ['0s', '119s', '2m', '179m', '3h', '47h', '2d']);
  const now = Date.parse('2026-01-01T00:01:00Z');
  assert.deepEqual(model.facts({ vm: vm('Stopped') }, now), ['2 CPUs', '1Gi', '60s']);
  assert.deepEqual(model.facts({ vm: vm('Stopped', { spec: { instancetype: { name: 'u1.small' } } }) }, now), ['u1.small', '60s']);
  assert.deepEqual(model.facts({ vmi: vmi('Running', {}, { nodeName: 'n1', interfaces: [{ ipAddress: '10.0.0.1' }] }) }, now), ['1 CPU', 'n1', '10.0.0.1', '60s', 'no VirtualMachine']);
  assert.equal(model.problem({ vmi: vmi('Running', {}, held) }), '');
  assert.equal(model.problem({ vmi: vmi('Running', {}, { conditions: [{ type: 'Paused', status: 'True', reason: 'PausedIOError', message: 'no space' }] }) }), 'no space');
  assert.equal(model.problem({ vm: vm('Stopped', { status: { conditions: [{ type: 'Failure', status: 'True', message: 'broken' }] } }) }), 'broken');
});

test('a VM says how far its disks are', () => {
  const waits = (message, status = 'True') => model.filling({ vm: vm('Provisioning', { status: { conditions: [{ type: 'Provisioning', status, message }] } }) });
  assert.equal(model.filling({ vm: vm('Running') }), null);
  assert.equal(model.filling({ vmi: vmi('Running') }), null);
  assert.equal(waits('DataVolume a is ImportInProgress, 42.0%', 'False'), null);
  assert.deepEqual(waits('DataVolume a waits for the first pod of its claim'), { text: 'DataVolume a waits for the first pod of its claim', percent: null });
  assert.equal(waits('DataVolume a is ImportInProgress, 42.5%').percent, 42.5);
  assert.equal(waits('DataVolume a is ImportInProgress, 42.5%; DataVolume b is ImportScheduled, N/A; DataVolume c-7 is ImportInProgress, 7%').percent, 7);
});

test('images are asked for where a VM waits for one, and told of on their way', () => {
  const machine = (message, status = 'True') => ({ vm: vm('Provisioning', { status: { conditions: [{ type: 'Provisioning', status, message }] } }) });
  const waits = 'DataVolume a waits for its image: virtctl image-upload dv a --no-create';
  const coming = 'DataVolume a is UploadReady, 42.0%';
  assert.deepEqual(model.awaited(machine(waits)), ['a']);
  assert.deepEqual(model.awaited(machine(`DataVolume c is ImportInProgress, 7%; ${waits}; DataVolume b-2 waits for its image: virtctl`)), ['a', 'b-2']);
  for (const none of [machine(waits, 'False'), machine(coming), machine('DataVolume a waits for the first pod of its claim'), { vmi: vmi('Running') }]) assert.deepEqual(model.awaited(none), []);

  const lines = (message, upload, offered = true) => model.images(machine(message), new Map(upload ? [['a', upload]] : []), offered, 20000)
    .map((l) => [l.volume, l.button, l.percent, l.text, l.error].join('|'));
  const upload = (state, more) => ({ state, taken: 256 << 20, size: 1 << 30, began: 10000, ended: 15000, error: '', ...more });
  assert.deepEqual(lines(waits), ['a|true|||']);
  assert.deepEqual(lines(waits, null, false), [], 'where uploads are CDI\'s');
  assert.deepEqual(lines(coming), [], 'somebody else sends it');
  for (const message of [waits, coming]) assert.deepEqual(lines(message, upload('sending')), ['a|false|25|25% of 1.0 GiB, 25.6 MiB/s, 30 s left|']);
  assert.deepEqual(lines(waits, upload('sending', { taken: 0, began: 19500 })), ['a|false|0|0% of 1.0 GiB|']);
  assert.deepEqual(lines(coming, upload('sending', { taken: 1 << 30 })), ['a|false|100|100% of 1.0 GiB, the importer writes the rest|']);
  assert.deepEqual(lines(waits, upload('sent')), ['a|false||The image is sent.|'], 'the VM does not know yet');
  assert.deepEqual(lines(waits, upload('sent', { ended: -80000 })), ['a|true|||'], 'the image was not taken after all');
  assert.deepEqual(lines(coming, upload('sent')), []);
  for (const message of [waits, coming]) assert.deepEqual(lines(message, upload('failed', { error: 'no' })), ['a|true|||no']);
  assert.deepEqual(lines('DataVolume b is UploadReady', upload('failed', { error: 'no' })), [], 'filled meanwhile');
});

test('sizes', () => {
  assert.deepEqual([0, 1023, 1024, 1536, 200 << 10, 1 << 20, 10 * 2 ** 30, 3000 * 2 ** 40].map(model.bytes), ['0 B', '1023 B', '1.0 KiB', '1.5 KiB', '200 KiB', '1.0 MiB', '10.0 GiB', '3000 TiB']);
});
