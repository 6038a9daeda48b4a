// The path between two network namespaces, run in a third one: `node box.mjs`, started with a
// channel over which its conditions come, those that relay.mjs describes. Not every kernel has
// netem. Each end has a device of VXLAN whose packets come here, of TCP and UDP alike, and leave for
// the other end, or do not.
import dgram from 'node:dgram';
import { Direction, PLAIN } from './relay.mjs';

export const VXLAN_PORT = 4789;
/** The address of an end, and of the box on its side. */
export const outer = (end, isBox) => `10.88.${end}.${isBox ? 2 : 1}`;

const VXLAN_HEADER = 8;
const ETHERNET_HEADER = 14;
const ETHERNET_TYPE = 12;
const IPV4 = 0x0800;
const IP_PROTOCOL = 9;
const TCP = 6;
const UDP = 17;

/** Carries packets between both ends until the program that has started it ends. */
async function carry() {
  const path = { ...PLAIN, packets: { passed: 0, lost: 0, overtaken: 0 } };
  const ends = [0, 1];
  const sockets = ends.map(() => dgram.createSocket({ type: 'udp4', recvBufferSize: 1 << 22 }));
  for (const end of ends) {
    const [other, towardsViewer] = [1 - end, end === 1];
    const direction = new Direction(path, end + 1);
    sockets[end].on('message', (packet) => {
      const deliver = () => sockets[other].send(packet, VXLAN_PORT, outer(other, false));
      const frame = packet.subarray(VXLAN_HEADER);
      // The conditions are those of IP: ARP is not lost or delayed.
      if (frame.readUInt16BE(ETHERNET_TYPE) !== IPV4) return deliver();
      mend(frame.subarray(ETHERNET_HEADER));
      direction.carry(
        frame.length - ETHERNET_HEADER,
        deliver,
        towardsViewer ? path.rate : Infinity,
      );
    });
    await new Promise((resolve) => sockets[end].bind(VXLAN_PORT, outer(end, true), resolve));
  }
  process.on('message', (conditions) => {
    Object.assign(path, conditions);
    process.send('set');
  });
  process.on('disconnect', () => process.exit());
  process.send('carries');
}

/**
 * Puts the right checksum into a packet of TCP or UDP: the kernel leaves that to the network card,
 * and there is none.
 */
function mend(packet) {
  const [header, total] = [(packet[0] & 15) * 4, packet.readUInt16BE(2)];
  const protocol = packet[IP_PROTOCOL];
  if (protocol !== TCP && protocol !== UDP) return;
  const body = packet.subarray(header, total);
  const at = protocol === TCP ? 16 : 6;
  body.writeUInt16BE(0, at);
  let sum = words(packet.subarray(12, 20)) + protocol + body.length + words(body);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  // UDP says with zero that there is none.
  body.writeUInt16BE(~sum & 0xffff || 0xffff, at);
}

function words(bytes) {
  let sum = 0;
  for (let at = 0; at + 1 < bytes.length; at += 2) sum += bytes.readUInt16BE(at);
  return bytes.length % 2 === 0 ? sum : sum + bytes[bytes.length - 1] * 256;
}

if (process.channel) await carry();
